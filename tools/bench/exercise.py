"""Run many small all-reduces in one process, to be profiled from outside.

Prints the resident memory after each requested number of operations.
"""

import argparse
import os
import sys
import tempfile
from functools import partial
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np

from c4bench.collective import schedule
from c4bench.collective.communicator import Communicator
from c4bench.collective.options import Options
from tools.bench.ranks import each, ranks

RANKS = 2
_ITEMS = 1024
_NEVER_S = 1e6


class Reading(msgspec.Struct, frozen=True):
    """Resident memory of the process after `operations` operations."""

    operations: int
    resident_bytes: int


def messages_per_operation() -> int:
    """Messages with data that all ranks together send for one operation; each of its chunks fits into one."""
    return sum(len(sends) for rank in range(RANKS) for sends in schedule.all_reduce(rank, RANKS, 1).streams)


def main(argv: list[str] | None = None) -> int:
    """Run the all-reduces; read the memory after each requested count."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench.exercise")
    parser.add_argument("operations", type=int, nargs="+", help="operation counts at which to read memory, ascending")
    parser.add_argument("--silent", action="store_true", help="without the recorder")
    options = parser.parse_args(argv)
    recording = Options(record=not options.silent)
    with tempfile.TemporaryDirectory() as folder, ranks(Path(folder), RANKS, recording) as comms:
        for before, until in pairwise([0, *options.operations]):
            each(comms, partial(_work, until - before))
            sys.stdout.write(msgspec.json.encode(Reading(until, _resident_bytes())).decode() + "\n")
    return 0


def _work(times: int, comm: Communicator) -> None:
    array = np.zeros(_ITEMS, np.float32)
    for _ in range(times):
        comm.all_reduce(array)


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    # Ranks switch only where they block, not by time: every run executes the same instructions.
    sys.setswitchinterval(_NEVER_S)
    raise SystemExit(main())
