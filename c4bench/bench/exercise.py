"""Small operations, many times, in a process of its own: to be watched from outside while it works.

Prints, for each number of operations asked for, how much memory the process then holds.
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

from c4bench.bench.ranks import each, ranks
from c4bench.collective import schedule
from c4bench.collective.communicator import Communicator
from c4bench.collective.options import Options

RANKS = 2
_ITEMS = 1024
_NEVER_S = 1e6


class Reading(msgspec.Struct, frozen=True):
    """What the process held after that many operations."""

    operations: int
    resident_bytes: int


def messages_per_operation() -> int:
    """Messages with data that all ranks together send for one operation; each of its chunks fits into one."""
    return sum(len(schedule.all_reduce(rank, RANKS, 1).sends) for rank in range(RANKS))


def main(argv: list[str] | None = None) -> int:
    """All-reduce so many times altogether, reading the memory at each number named on the way."""
    parser = argparse.ArgumentParser(prog="python -m c4bench.bench.exercise")
    parser.add_argument("operations", type=int, nargs="+", help="when to look, in rising order")
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
    # Ranks take turns only where they wait, not by the clock: the same instructions in every run.
    sys.setswitchinterval(_NEVER_S)
    raise SystemExit(main())
