"""`python accuracy.py DIRECTORY...`: what campaigns' run directories come to together, as a Markdown table."""

import json
import sys
from pathlib import Path

from campaign import TRIALS, least_right

from c4bench.report.statistics import share_interval


def row(name, verdicts):
    """A line of the table: how many were right, how many healthy components were named, and what was missed."""
    tried = [verdict for verdict in verdicts if "refused" not in verdict]
    missed = [f"{verdict['fault']} ({verdict['name']})" for verdict in tried if not verdict["right"]]
    refused = [f"{verdict['fault']} ({verdict['name']}) not tried" for verdict in verdicts if "refused" in verdict]
    healthy = sum(verdict["healthy"] for verdict in tried)
    return f"| {name} | {len(tried) - len(missed)} of {len(tried)} | {healthy} | {', '.join(missed + refused)} |"


def summary(runs):
    """The table of these runs' verdicts by name, and the limit that all of them together would give."""
    verdicts = [verdict for run in runs.values() for verdict in run]
    tried = [verdict for verdict in verdicts if "refused" not in verdict]
    right = sum(verdict["right"] for verdict in tried)
    share = share_interval(right, len(tried))
    limit = least_right(TRIALS, right, len(tried))
    return "\n".join(
        [
            "| run | right | healthy components named | missed |",
            "|---|---|---|---|",
            *(row(name, run) for name, run in runs.items()),
            row("all", verdicts),
            "",
            f"Accuracy {share.mean:.3f} ({share.low:.3f} to {share.high:.3f}): {limit} of {TRIALS} can be asked for.",
        ]
    )


def main(directories):
    """Print the summary of the directories that have a campaign."""
    files = [Path(directory) / "campaign.jsonl" for directory in directories]
    runs = {str(file.parent): list(map(json.loads, file.read_text().splitlines())) for file in files if file.exists()}
    if not runs:
        sys.exit("accuracy: no campaign.jsonl in the directories given; run the campaign with --c4-run-dir first")
    sys.stdout.write(summary(runs) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
