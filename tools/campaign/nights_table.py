"""README's table of what the campaigns of the last nights came to, on seeds that nothing was tuned on."""

from pathlib import Path

from tools.campaign.figures import Figures, Share
from tools.documents.generated import frame

_BLOCK = "nights"


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
    document.write_text(frame(document, _BLOCK).filled("\n".join(table), source))


def _share(share: Share) -> str:
    return f"{share.interval.mean:.3f} ({share.interval.low:.3f} to {share.interval.high:.3f})"
