"""Instructions the recorder executes per message, counted by valgrind; machine load hardly changes them.

Ranks are threads over the loopback transport. Subtracting two runs of different length removes the start of Python;
subtracting runs without the recorder from runs with it leaves the recorder.
"""

import os
import re
import shutil
import subprocess
import sys
from typing import NamedTuple

from c4bench.errors import UnhealthyError
from tools.bench.exercise import messages_per_operation

MISSING = "no valgrind here (apt-get install valgrind)"
_COLLECTED = re.compile(r"Collected : (\d+)")
_EXERCISE = (sys.executable, "-m", "tools.bench.exercise")


class Instructions(NamedTuple):
    """Recorder instructions `per_message`, and as a `fraction` of all that ranks and transport execute."""

    per_message: float
    fraction: float


def available() -> bool:
    """Whether valgrind is installed."""
    return shutil.which("valgrind") is not None


def recorder_instructions(few: int, many: int) -> Instructions:
    """Count over `many` - `few` operations. Raises UnhealthyError where valgrind cannot run the exercise."""
    on = _counted(many) - _counted(few)
    off = _counted(many, "--silent") - _counted(few, "--silent")
    return compare(on, off, (many - few) * messages_per_operation())


def compare(on: int, off: int, messages: int) -> Instructions:
    """From instructions with the recorder and without, for the same number of messages."""
    return Instructions((on - off) / messages, (on - off) / on)


def _counted(operations: int, *options: str) -> int:
    tool = ("valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null")
    # Fixed hashing and fair scheduling reduce the variation between runs.
    done = subprocess.run(
        [*tool, "--fair-sched=yes", *_EXERCISE, str(operations), *options],
        env=os.environ | {"PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    return collected(done.stderr) if done.returncode == 0 else _refuse(done.stderr)


def collected(output: str) -> int:
    """Parse the instruction count from callgrind's output. Raises UnhealthyError if there is none."""
    match = _COLLECTED.search(output)
    return int(match[1]) if match else _refuse(output)


def _refuse(output: str) -> int:
    raise UnhealthyError(f"valgrind did not count the exercise: {' '.join(output.split()[-30:])}")
