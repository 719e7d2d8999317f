"""The table of docs/reference/attach.md: faults under programs of others, from runs of the scenarios that try them."""

import math
from collections.abc import Sequence
from pathlib import Path

from c4bench.errors import UsageError
from c4bench.model.measurement import Measurement
from c4bench.record import RunDirectory
from tools.documents.generated import frame
from tools.shares import share_interval

NAME = "attached-faults"
_RIGHT, _ALARM, _FALSE = "attach.correct_fraction", "attach.alarm_s", "attach.false_alarms"
_HEALTHY = "no fault"


def rewrite_attached_faults(document: Path, runs: Sequence[Path]) -> None:
    """Write the table of all trials in `runs` between its markers in `document`.

    Raises UsageError, and writes nothing, where the runs have no trial or the document lacks a marker.
    """
    measured = [one for run in runs for one in RunDirectory(run).measurements() if "program" in one.labels]
    programs = sorted({str(one.labels["program"]) for one in measured if one.name == _RIGHT})
    if not programs:
        raise UsageError(f"no run has {_RIGHT}; give runs of tests/scenarios/attach/test_faults_under_programs.py")
    faults = list(dict.fromkeys(_fault(one) for one in measured if one.name in {_RIGHT, _ALARM}))
    head = ["| fault | " + " | ".join(programs) + " | limit |", "|---" * (len(programs) + 2) + "|"]
    rows = [_row(fault, [_trials(measured, program, fault) for program in programs]) for fault in faults]
    healthy = [_healthy([one for one in measured if _is(one, _FALSE, program, "")]) for program in programs]
    shares = [_share([one for one in measured if _is(one, _RIGHT, program)]) for program in programs]
    last = [_line(_HEALTHY, healthy, "none"), _line("all faults", shares, ">= 0.95")]
    source = "Right of how many trials, and the latest alarm; 95 % intervals. `make attached` rewrites this."
    document.write_text(frame(document, NAME).filled("\n".join([*head, *rows, *last]), source))


def _fault(one: Measurement) -> str:
    return str(one.labels.get("fault", ""))


def _is(one: Measurement, name: str, program: str, fault: str | None = None) -> bool:
    return one.name == name and one.labels["program"] == program and fault in {None, _fault(one)}


def _trials(measured: Sequence[Measurement], program: str, fault: str) -> tuple[list[Measurement], list[Measurement]]:
    """What was measured of a fault under a program: whether it was named rightly, and when the alarm came."""
    right = [one for one in measured if _is(one, _RIGHT, program, fault)]
    return right, [one for one in measured if _is(one, _ALARM, program, fault)]


def _row(fault: str, cells: Sequence[tuple[list[Measurement], list[Measurement]]]) -> str:
    limits = sorted({one.limit for _, alarms in cells for one in alarms if one.limit})
    return _line(fault, [_cell(right, alarms) for right, alarms in cells], ", ".join(f"{each} s" for each in limits))


def _cell(right: Sequence[Measurement], alarms: Sequence[Measurement]) -> str:
    if not right:
        return ""
    came_s = [one.value for one in alarms if math.isfinite(one.value)]
    when = f"{max(came_s):.2f} s" if len(came_s) == len(right) else "not all with an alarm"
    return f"{sum(one.value == 1 for one in right)} of {len(right)}, {when}"


def _healthy(alarms: Sequence[Measurement]) -> str:
    return f"{sum(one.value for one in alarms):.0f} alarms in {len(alarms)} runs" if alarms else ""


def _share(right: Sequence[Measurement]) -> str:
    count = sum(one.value == 1 for one in right)
    share = share_interval(count, len(right))
    return f"{count} of {len(right)}: {share.mean:.2f} ({share.low:.2f} to {share.high:.2f})"


def _line(first: str, cells: Sequence[str], last: str) -> str:
    return f"| {' | '.join([first, *cells, last])} |"
