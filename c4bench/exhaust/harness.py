"""Boot labs until all trials are in the ledger."""

import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec

from c4bench import files
from c4bench.errors import UnhealthyError, UsageError
from c4bench.exhaust import ledger
from c4bench.exhaust.ledger import CURRENT_FILE, MORE, ORDERS_FILE, Entry, Orders
from c4bench.exhaust.program import Program, topology
from c4bench.exhaust.trials import EVENTS, Event, Replay, Shard
from c4bench.lab import topology_file
from c4bench.lab.machine.launch import launch
from c4bench.lab.places import RUN

# Fewer would spend their time on booting, and a kernel that has run long has more to forget.
RUNS_OF_LAB = 1000
_LAB_LIMIT_S = 24 * 3600.0


class Sweep(msgspec.Struct, frozen=True):
    """What to try: a program with these kinds of events, part `shard` of all trials, at most `runs` more; 0: all."""

    program: Program
    seed: int
    kinds: tuple[str, ...]
    shard: Shard
    runs: int = 0
    shrinks: int = 0


class Tally(msgspec.Struct, frozen=True):
    """What a ledger says: outcomes by event, and how many began as the undisturbed run; `machine_s` of this call."""

    outcomes: dict[str, dict[str, int]]
    runs: int
    wrong: int
    placed: int
    undisturbed: int
    kinds_of_undisturbed: int
    machine_s: float = 0.0


def sweep(what: Sweep, folder: Path) -> Tally:
    """Try everything that the ledger in `folder` does not have. Raises UsageError for the folder of another sweep."""
    _claim(what, folder)
    began_s = time.monotonic()
    wanted = len(_tried(folder)) + what.runs if what.runs else 0
    more = True
    while more and (not wanted or len(_tried(folder)) < wanted):
        runs = min(RUNS_OF_LAB, wanted - len(_tried(folder))) if wanted else RUNS_OF_LAB
        orders = Orders(what.program, what.seed, RUN, what.kinds, what.shard, runs, None, what.shrinks)
        more = _in_lab(orders, folder)
    return tally(ledger.read(folder), time.monotonic() - began_s)


def repeat(replay: Replay, folder: Path) -> Entry:
    """Try what a replay file says, in a new lab; `folder` must not have a ledger."""
    folder.mkdir(parents=True, exist_ok=True)
    _in_lab(Orders(replay.program, replay.seed, RUN, only=replay.event), folder)
    return ledger.read(folder)[-1]


def tally(entries: Sequence[Entry], machine_s: float = 0.0) -> Tally:
    """Count a ledger's entries."""
    tried = [(entry.event.kind, entry) for entry in entries if entry.event]
    kinds = dict.fromkeys([*EVENTS, *(kind for kind, _ in tried)])
    by_event = {kind: Counter(entry.verdict for one, entry in tried if one == kind) for kind in kinds}
    undisturbed = [entry.digest for entry in entries if not entry.event]
    return Tally(
        {kind: dict(sorted(counted.items())) for kind, counted in by_event.items() if counted},
        len(tried),
        sum(entry.verdict == "wrong" for entry in entries),
        sum(entry.placed for _, entry in tried),
        len(undisturbed),
        len(set(undisturbed)),
        machine_s,
    )


def _tried(folder: Path) -> set[Event]:
    return {entry.event for entry in ledger.read(folder) if entry.event}


def _claim(what: Sweep, folder: Path) -> None:
    """Note in the folder which sweep its ledger is of."""
    note = folder / "sweep.json"
    own = msgspec.json.encode(msgspec.structs.replace(what, runs=0, shrinks=0))
    folder.mkdir(parents=True, exist_ok=True)
    if not note.exists():
        files.replace(note, [own])
    elif note.read_bytes() != own:
        raise UsageError(
            f"{folder} has the ledger of another program, seed, shard or choice of events: give another one"
        )


def _in_lab(orders: Orders, folder: Path) -> bool:
    """Carry out orders in a new lab; returns whether trials are left.

    A trial that the lab did not survive is entered as wrong. Raises UnhealthyError where the lab ended otherwise.
    """
    (folder / CURRENT_FILE).unlink(missing_ok=True)
    (folder / ORDERS_FILE).write_bytes(msgspec.json.encode(orders))
    (folder / "topology.yml").write_text(topology(orders.program))
    fabric = topology_file.load(str(folder / "topology.yml"))
    command = [sys.executable, "-m", "c4bench.exhaust.guest", str((folder / ORDERS_FILE).resolve())]
    try:
        ended = launch(fabric, command, folder, seed=orders.seed, agents=False, limit_s=_LAB_LIMIT_S)
    except UnhealthyError as error:
        event = _current(folder)
        if event is None:
            raise
        ledger.append(folder, Entry("wrong", event, f"the lab did not survive it: {str(error).splitlines()[0]}"))
        return True
    if ended.exit_code not in (0, MORE):
        raise UnhealthyError(f"the lab's program ended with exit code {ended.exit_code} (its files: {folder})")
    return ended.exit_code == MORE


def _current(folder: Path) -> Event | None:
    """The trial that was under way when the lab ended."""
    try:
        return msgspec.convert(json.loads((folder / CURRENT_FILE).read_bytes()), Event | None)
    except (FileNotFoundError, ValueError):
        return None
