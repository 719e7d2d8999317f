"""What files of other tools say, in words: for pages and for the command line."""

from collections import Counter
from collections.abc import Sequence

from c4bench.model.evidence import EvidenceReport, EvidenceVerdict, HostClock, Problem, SourceFile, State
from c4bench.record import RunDirectory

_NETWORK = ("nic", "path", "link")
_FILES = 3  # named of those that are alike


def reports_of(run: RunDirectory) -> list[tuple[str, EvidenceReport]]:
    """Name and report of each job whose files the run directory holds in `evidence/`."""
    if not (found := run.evidence()):
        return []
    from c4bench.evidence.collect import collect  # noqa: PLC0415  (few runs have such files)
    from c4bench.evidence.judging.judge import judge  # noqa: PLC0415

    return [(name, judge(collect([folder]))) for name, folder in found.items()]


def clock_summary(clocks: tuple[HostClock, ...]) -> str:
    """How far the clocks are apart, and how well that is known."""
    offsets_s = [clock.offset_s for clock in clocks]
    worst = max(clocks, key=lambda clock: clock.error_s)
    return (
        f"times are on the clock of {clocks[0].host}; {len(clocks) - 1} other clocks are {min(offsets_s):.6g} to "
        f"{max(offsets_s):.6g} s ahead of it, give or take {worst.error_s:.2g} s ({worst.host})"
    )


def source_lines(sources: Sequence[SourceFile]) -> list[str]:
    """What each file is, and how much of it was used; files of one format and version together."""
    alike: dict[str, list[SourceFile]] = {}
    for source in sources:
        alike.setdefault(f"{source.format} {source.version}".strip(), []).append(source)
    return [f"{name}: {some_files([one.file for one in ones])}{_used(ones)}" for name, ones in sorted(alike.items())]


def _used(sources: Sequence[SourceFile]) -> str:
    counts = Counter[str]()
    for source in sources:
        counts.update(source.used)
    return f"; {', '.join(f'{what}: {count}' for what, count in counts.items())}" if counts else ""


def problem_lines(problems: Sequence[Problem]) -> list[str]:
    """What could not be used and why: a line for each file, or for all files with the same reason."""
    alike: dict[str, list[Problem]] = {}
    for problem in problems:
        alike.setdefault(problem.reason, []).append(problem)
    return [
        str(ones[0]) if len(ones) == 1 else f"{len(ones)} files: {reason}: {some_files([one.file for one in ones])}"
        for reason, ones in alike.items()
    ]


def some_files(files: Sequence[str]) -> str:
    """The first files by name, and how many more there are."""
    names = list(dict.fromkeys(files))
    more = f" and {len(names) - _FILES} more" if len(names) > _FILES else ""
    return ", ".join(names[:_FILES]) + more


def job_size(report: EvidenceReport) -> str:
    """How many ranks the job has, or at least has, or that no file says."""
    if report.size_stated:
        return f"{report.ranks} ranks"
    return f"{report.ranks} ranks or more" if report.ranks else "a job of unknown size"


_HEADLINES = {
    State.FAULT: ("fail", "Something is wrong"),
    State.HEALTHY: ("pass", "Healthy, as far as these files go"),
    State.NO_STRAGGLER: ("inconclusive", "No straggler is seen; a hang would not be"),
    State.MEASURED: ("inconclusive", "Measured; nothing to compare it with"),
    State.UNTOLD: ("inconclusive", "Nothing could be told"),
}


def headline(report: EvidenceReport) -> tuple[str, str]:
    """How a page shows a report's state: a colour's name, and a few words."""
    return _HEADLINES[report.state]


def summary(report: EvidenceReport) -> str:
    """What it means that there is no verdict: all is well, results were wrong, or the files do not tell."""
    if report.state is State.FAULT:
        return "a benchmark gave wrong results"
    if report.state is State.HEALTHY:
        return "healthy as far as these files go: no rank is behind, calls anything else, or is late in most operations"
    if report.state is State.NO_STRAGGLER:
        return "no straggler is seen in what has finished; a hang would not be in these files"
    if report.state is State.MEASURED:
        return "benchmarks only: no file says how fast they should be"
    return f"nothing could be told: {report.untold_why}"


def blamed(verdict: EvidenceVerdict) -> str:
    """Who is to blame, in the words of a verdict."""
    on = f" on {', '.join(verdict.hosts)}" if verdict.hosts else ""
    if verdict.culprits:
        unsure = "one of these is to blame" if len(verdict.culprits) > 1 else "perhaps to blame"
        who = "to blame" if verdict.sure else unsure
        return f"{who}: ranks {ranges(verdict.culprits)}{on}"
    if verdict.diagnosis.component.kind in {"nic", "path"}:
        return f"to look at: {verdict.diagnosis.component}"
    component = verdict.diagnosis.component
    if verdict.hosts or component.kind in _NETWORK:
        unplaced = "" if component.kind in _NETWORK else "; its rank in the job is not known"
        return f"to look at: {component}{on}{unplaced}"
    return "nobody is known to be to blame"


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
