"""What the machine and a lab's guest exchange: what to try, and the ledger of what was tried."""

import os
from pathlib import Path

import msgspec

from c4bench.exhaust.outcome import Verdict
from c4bench.exhaust.program import Program
from c4bench.exhaust.trials import Counts, Event, Shard

ORDERS_FILE = "orders.json"
MORE = 10  # the guest's exit code when it leaves trials for another lab
LEDGER_FILE = "ledger.jsonl"
CURRENT_FILE = "current.json"  # the event of the trial that runs, for a lab that does not survive it


class Orders(msgspec.Struct, frozen=True):
    """Try these events of a program, in the order that `seed` draws, at most `runs` of them in this lab; 0: all.

    Trials that the ledger has are not repeated. With `only` nothing but that event is tried. `shrinks` is how many
    trials may be spent on the smallest program for what goes wrong. `folder` is the run directory's name in the lab.
    """

    program: Program
    seed: int
    folder: str
    kinds: tuple[str, ...] = ()
    shard: Shard = Shard()
    runs: int = 0
    only: Event | None = None
    shrinks: int = 0


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """A trial in the ledger; without an event it is a run of the undisturbed program.

    `placed`: all packets until the event were those of the undisturbed run, in its order. `digest` is of all packets.
    """

    verdict: Verdict
    event: Event | None = None
    detail: str = ""
    counts: Counts | None = None
    placed: bool = False
    digest: str = ""
    virtual_s: float = 0.0


def append(folder: Path, entry: Entry) -> None:
    """Add a line to the ledger, with one write."""
    descriptor = os.open(folder / LEDGER_FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, msgspec.json.encode(entry) + b"\n")
    finally:
        os.close(descriptor)


def read(folder: Path) -> list[Entry]:
    """All entries; a last line that is not whole counts as not written."""
    try:
        lines = (folder / LEDGER_FILE).read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    return [msgspec.json.decode(line, type=Entry) for line in lines[:-1]]
