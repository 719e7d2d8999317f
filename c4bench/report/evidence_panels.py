"""What files of other tools say, for a page: the verdicts, the ranks by sequence number, and who waits for whom."""

from typing import Any, NamedTuple

import msgspec

from c4bench.c4d.evidence.judge import judge
from c4bench.evidence.collect import collect
from c4bench.model.evidence import EvidenceReport, HostClock
from c4bench.record import RunDirectory

_SHOWN = 500  # rows of a table; a page of more is not read


class EvidencePanel(NamedTuple):
    """A job's verdicts and tables. Tables are cut; `hidden` are the rows that they lack."""

    name: str
    report: EvidenceReport
    standings: list[dict[str, Any]]
    reached: list[dict[str, Any]]
    hidden: int
    clocks: str


def panel_of(report: EvidenceReport, name: str = "") -> EvidencePanel:
    """What a page shows of a report."""
    standings = [{**msgspec.structs.asdict(one), "ranks": ranges(one.ranks), "waits_for": ranges(one.waits_for)}
                 for one in report.standings[:_SHOWN]]  # fmt: skip
    reached = [{**msgspec.structs.asdict(one), "ranks": ranges(one.ranks)} for one in report.reached[:_SHOWN]]
    hidden = max(0, len(report.standings) - _SHOWN) + max(0, len(report.reached) - _SHOWN)
    return EvidencePanel(
        name, report, standings, reached, hidden, clock_summary(report.clocks) if report.clocks else ""
    )


def panels_of(run: RunDirectory) -> list[EvidencePanel]:
    """A panel for each job whose files the run directory holds in `evidence/`."""
    return [panel_of(judge(collect([folder])), name) for name, folder in run.evidence().items()]


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
