"""The generated part of docs/reference/retries.md: how long NICs take to give up, for QPs that programs really make."""

from pathlib import Path

from c4bench.collective.options import FailureTimeouts
from c4bench.cost.ack_timeout import Nic, detection
from c4bench.units import format_time
from c4bench.verbs.transport import BRISK, PATIENT
from tools.documents.generated import frame

BLOCK = "retries"
_PROBE = FailureTimeouts().probe
# Whose QPs, and their timeout and retry_cnt.
QPS = {
    "collectives, profile `brisk`": (BRISK.timeout, BRISK.retries),
    "collectives, profile `patient`": (PATIENT.timeout, PATIENT.retries),
    "probes of resilient collectives": (_PROBE.timeout, _PROBE.retries),
    "perftest's default": (14, 7),
    "NCCL's default": (20, 7),
}


def rewrite_retries(document: Path) -> None:
    """Replace the part between the markers in `document`.

    Raises UsageError if the document cannot be read or lacks a marker; nothing is written then.
    """
    document.write_text(frame(document, BLOCK).filled(table()))


def table() -> str:
    """The table, a row for each of `QPS`: the usual time on each NIC, and the bounds of what was measured."""
    rows = [
        f"| QP | `timeout` | `retry_cnt` | {' | '.join(Nic)} |",
        "|---|---|---|---|---|---|",
    ]
    for whose, (timeout, retries) in QPS.items():
        times = (detection(nic, timeout, retries) for nic in Nic)
        cells = (
            f"{format_time(one.usual_s)} ({format_time(one.least_s)} to {format_time(one.most_s)})" for one in times
        )
        rows.append(f"| {whose} | {timeout} | {retries} | {' | '.join(cells)} |")
    return "\n".join(rows)
