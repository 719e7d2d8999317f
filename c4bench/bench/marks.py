"""Moments of a lab, told on the machine's clock.

A lab in virtual time cannot read the machine's clock. But a directory that it makes in the run directory is made by
the machine, and carries the machine's time.
"""

from pathlib import Path

from c4bench.errors import UnhealthyError
from c4bench.record import RunDirectory

BEGIN, END = "begin", "end"


def leave(run: RunDirectory, name: str) -> None:
    """Inside the lab: mark this moment. Each name can be used once, until the marks are `taken`."""
    place = _place(run)
    place.mkdir(exist_ok=True)
    (place / name).mkdir()


def taken(run: RunDirectory) -> dict[str, float]:
    """Outside: when each mark was left, in seconds on the machine's clock; and remove them."""
    found = {mark.name: mark.stat().st_mtime for mark in _place(run).iterdir()}
    for name in found:
        (_place(run) / name).rmdir()
    _place(run).rmdir()
    return found


def between(run: RunDirectory) -> float:
    """Seconds of the machine's clock from BEGIN to END. Raises UnhealthyError where the lab left no such marks."""
    found = taken(run) if _place(run).is_dir() else {}
    if not {BEGIN, END} <= found.keys():
        raise UnhealthyError("the lab did not mark the time that was to be measured")
    return found[END] - found[BEGIN]


def _place(run: RunDirectory) -> Path:
    return run.path / "lab" / "marks"
