"""A page on what files of other tools say: the verdicts, the ranks by sequence number, and who waits for whom."""

import msgspec

from c4bench.model.evidence import EvidenceReport, HostClock
from c4bench.report.html import environment

_SHOWN = 500  # rows of a table; a page of more is not read


def evidence_page(report: EvidenceReport) -> str:
    """The page as HTML; it loads nothing and has no scripts."""
    content = {
        "report": report,
        "standings": [{**msgspec.structs.asdict(one), "ranks": ranges(one.ranks), "waits_for": ranges(one.waits_for)}
                      for one in report.standings[:_SHOWN]],
        "hidden": max(0, len(report.standings) - _SHOWN),
        "ranges": ranges,
        "clocks": clock_summary(report.clocks) if report.clocks else "",
    }  # fmt: skip
    return environment().get_template("evidence.html.j2").render(content)


def clock_summary(clocks: tuple[HostClock, ...]) -> str:
    """How far the clocks are apart, and how well that is known."""
    offsets_s = [clock.offset_s for clock in clocks]
    worst = max(clocks, key=lambda clock: clock.error_s)
    return (
        f"times are on the clock of {clocks[0].host}; {len(clocks) - 1} other clocks are {min(offsets_s):.6g} to "
        f"{max(offsets_s):.6g} s ahead of it, give or take {worst.error_s:.2g} s ({worst.host})"
    )


def ranges(ranks: tuple[int, ...], most: int = 16) -> str:
    """`0-3, 5`, at most so many ranges."""
    found: list[list[int]] = []
    for rank in sorted(ranks):
        if found and rank == found[-1][1] + 1:
            found[-1][1] = rank
        else:
            found.append([rank, rank])
    shown = [f"{first}" if first == last else f"{first}-{last}" for first, last in found[:most]]
    return ", ".join(shown) + (" ..." if len(found) > most else "")
