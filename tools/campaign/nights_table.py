"""Tables of how often C4D was right on seeds that it was not tuned on: in the last nights, of idle and of busy jobs."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from c4bench.errors import UsageError
from tools.campaign.figures import Figures, Share, figures
from tools.campaign.grade import Grade
from tools.documents.generated import frame
from tools.documents.readme import figures_page

_NIGHTS = "nights"
_CAMPAIGNS = "campaigns"
# At least this share of the answers due should be resolved.
_RESOLVED = 0.95


def rewrite_nights(document: Path, found: Figures, nights: int) -> None:
    """Write the table of `nights` nights between the markers in `document`. Raises UsageError without markers."""
    rows = [
        ("The one right component, and nothing that could be told from it", ">= 0.95", found.resolved),
        ("The right component, alone or among others", ">= 0.99", found.among),
        ("Other components only", "<= 0.003", found.wrong),
        ("Nothing, though it cost the job more than 2 % of its step time", "", found.silent),
        ("Trials in which a healthy component was named without alternatives", "0", found.healthy),
    ]
    table = ["| C4D named | target | share |", "|---|---|---|"]
    table += [f"| {text} | {target} | {_share(share)} |" for text, target, share in rows]
    source = (
        f"{found.trials} trials in {nights} of the last nights, each night with the seed of its date; 95 % intervals. "
        "`make accuracy` rewrites this."
    )
    document.write_text(frame(document, _NIGHTS).filled("\n".join(table), source))


def rewrite_campaigns(readme: Path, grades: Sequence[Grade]) -> None:
    """Write how often C4D was right of idle and busy jobs into `readme`, and by load into docs/figures.md beside it.

    A job is idle if its load is 0, as in the campaign of `make test`. Writes nothing and raises UsageError without
    markers, or if no answer was due of either kind.
    """
    few, full = frame(readme, _CAMPAIGNS), frame(figures_page(readme), _CAMPAIGNS)
    loads = sorted({grade.load for grade in grades})
    shares = [(_load(load), [grade for grade in grades if grade.load == load]) for load in loads]
    idle = "idle jobs, which communicate for 1 % of their time", [grade for grade in grades if not grade.load]
    busy = f"busy jobs, {_range(loads)} of their time", [grade for grade in grades if grade.load]
    for text, grades_of in (idle, busy):
        if not any(grade.due for grade in grades_of):
            raise UsageError(f"no trial to count of {text}; give run directories of both campaigns")
    source = f"Recorded live; the target is {_RESOLVED:g}; 95 % intervals. `make campaigns` rewrites this."
    readme.write_text(few.filled(_campaigns([idle, busy]), source))
    figures_page(readme).write_text(full.filled(_campaigns([*shares, ("all busy", busy[1])]), source))


def _load(load: float) -> str:
    return f"{100 * load:.0f} % of the time" if load else "idle"


def _range(loads: Iterable[float]) -> str:
    """Such as `10 % to 60 %`."""
    busy = [100 * load for load in loads if load]
    return f"{min(busy, default=0):.0f} % to {max(busy, default=0):.0f} %"


def _campaigns(groups: Iterable[tuple[str, Sequence[Grade]]]) -> str:
    lines = [
        "| C4D on random faults | the right component alone | wrong | silent | a healthy one alone |",
        "|---|---|---|---|---|",
    ]
    lines += [_counted(text, figures(grades)) for text, grades in groups if any(grade.due for grade in grades)]
    return "\n".join(lines)


def _counted(text: str, found: Figures) -> str:
    missed = found.resolved.trials < _RESOLVED * found.resolved.total
    right = f"**{_share(found.resolved)}**, missed" if missed else _share(found.resolved)
    wrong, silent = found.wrong, found.silent
    cells = right, f"{wrong.trials} of {wrong.total}", f"{silent.trials} of {silent.total}"
    return f"| {text} | {' | '.join(cells)} | {found.healthy.trials} of {found.healthy.total} |"


def _share(share: Share) -> str:
    return f"{share.interval.mean:.3f} ({share.interval.low:.3f} to {share.interval.high:.3f})"
