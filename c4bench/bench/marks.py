"""Timestamps of a lab on the machine's clock.

A lab in virtual time cannot read the machine's clock. A directory that it makes in the run directory is created by
the machine, so its modification time is the machine's.
"""

from pathlib import Path

from c4bench.errors import UnhealthyError
from c4bench.record import RunDirectory

BEGIN, END = "begin", "end"


def mark(run: RunDirectory, name: str) -> None:
    """Inside the lab: mark this moment. Each name can be used once until `collect` removes the marks."""
    folder = _folder(run)
    folder.mkdir(exist_ok=True)
    (folder / name).mkdir()


def collect(run: RunDirectory) -> dict[str, float]:
    """Outside the lab: return each mark's time in seconds on the machine's clock, and remove the marks."""
    times = {mark.name: mark.stat().st_mtime for mark in _folder(run).iterdir()}
    for name in times:
        (_folder(run) / name).rmdir()
    _folder(run).rmdir()
    return times


def between(run: RunDirectory) -> float:
    """Seconds of the machine's clock from BEGIN to END. Raises UnhealthyError where the lab left no such marks."""
    times = collect(run) if _folder(run).is_dir() else {}
    if not {BEGIN, END} <= times.keys():
        raise UnhealthyError("the lab left no begin and end marks; run the bench again")
    return times[END] - times[BEGIN]


def _folder(run: RunDirectory) -> Path:
    return run.path / "lab" / "marks"
