"""Instructions that the recorder takes for a message, counted by valgrind: a busy machine changes them little.

The ranks are threads over the loopback transport. Two runs of different length are subtracted, so that starting Python
drops out, and then those without the recorder from those with it.
"""

import os
import re
import shutil
import subprocess
import sys
from typing import NamedTuple

from c4bench.bench.exercise import messages_per_operation
from c4bench.errors import UnhealthyError

MISSING = "no valgrind here (apt-get install valgrind)"
_COLLECTED = re.compile(r"Collected : (\d+)")
_EXERCISE = (sys.executable, "-m", "c4bench.bench.exercise")


class Instructions(NamedTuple):
    """`per_message` of the recorder, and what `fraction` that is of all that ranks and transport execute."""

    per_message: float
    fraction: float


def available() -> bool:
    """Whether they can be counted here."""
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
    # Hashing, and whose turn it is, would otherwise differ more from run to run.
    done = subprocess.run(
        [*tool, "--fair-sched=yes", *_EXERCISE, str(operations), *options],
        env=os.environ | {"PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    return collected(done.stderr) if done.returncode == 0 else _refuse(done.stderr)


def collected(output: str) -> int:
    """Instructions by what callgrind says at its end. Raises UnhealthyError where it does not."""
    match = _COLLECTED.search(output)
    return int(match[1]) if match else _refuse(output)


def _refuse(output: str) -> int:
    raise UnhealthyError(f"valgrind did not count the exercise: {' '.join(output.split()[-30:])}")
