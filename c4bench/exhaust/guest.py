"""Run trials inside a lab, all in one: its hosts have no agents, and ranks are children of this process.

A trial begins at a round moment of the lab's clock, with ranks that are copies of one process, so that it meets the
same state as every other.
"""

import gc
import importlib
import importlib.util
import os
import selectors
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import cast

import msgspec
from msgspec.structs import replace

from c4bench import inventory, namespaces
from c4bench.collective.communicator import Communicator
from c4bench.collective.endpoint_context import RankProcess
from c4bench.collective.errors import CollectiveError
from c4bench.collective.recorder import NullRecorder, Recorder
from c4bench.errors import C4Error, UnhealthyError
from c4bench.exhaust import attached, ledger, packets
from c4bench.exhaust.control_plane import Hub, TrialRendezvous
from c4bench.exhaust.ledger import CURRENT_FILE, MORE, Entry, Orders
from c4bench.exhaust.outcome import Outcome, RankEnd, judge
from c4bench.exhaust.packets import Packet
from c4bench.exhaust.program import REST_S, Program
from c4bench.exhaust.shrink import smallest
from c4bench.exhaust.trials import KILLING, Counts, Event, Replay, ordered
from c4bench.lab.spec import INVENTORY
from c4bench.model.fabric import Host
from c4bench.model.telemetry import Member
from c4bench.workload.collectives import RepeatedCall

_HUB = Path("/run/tmp/exhaust.sock")
# Trials begin at multiples of this, which the kernel's timers divide, and so long after the one before at least.
_ROUND_NS, _PAUSE_S = 100_000_000, 0.03
# The step of the lab's clock, and a sleep whose timer ends 2 ns before a step. Where that rings late, so much is left
# out by the clock afterwards.
_STEP_NS, _NAP_NS, _LATE_NS, _LEFT_NS, _ALIGNING_NS = 16, 20_013, 256, 4, 2_000_000
# Modules that ranks load late: here they are loaded once.
_LATE = ("verbs.device", "collective.degraded", "collective.migration")
_CHECKED_EVERY = 100
_REPLAYS_MOST = 3


class Trial:
    """One run of a program, with one event or none."""

    def __init__(self, program: Program, hosts: Sequence[Host], event: Event | None) -> None:
        self._program, self._event = program, event
        self._repair = packets.Repair(event)
        self._hosts = [replace(host, nics=host.nics[: program.nics]) for host in hosts[: program.ranks]]
        self._ends: dict[int, RankEnd] = {}
        self._running: dict[int, tuple[int, int]] = {}
        self._selector = selectors.DefaultSelector()

    def run(self) -> tuple[Outcome, list[Packet]]:
        """Run it to its end, or to its limit."""
        hub = Hub(_HUB, self._selector, self._ends.__setitem__)
        members = [
            Member(rank, host.name, tuple(nic.name for nic in host.nics), rank) for rank, host in self._numbered()
        ]
        _sleep_until_round()
        packets.begin(self._event)
        try:
            for rank, host in self._numbered():
                self._start(rank, host, members)
            self._wait()
        finally:
            self._kill()
            listed = packets.read(self._repair.listed)
            packets.end()
            hub.close()
            self._selector.close()
        killed = self._event is not None and any(event.what in KILLING for event in self._event.all)
        return judge(self._ends, self._program.processes, self._program.limit_s, killed=killed), listed

    def _numbered(self) -> list[tuple[int, Host]]:
        return list(enumerate(self._hosts[: self._program.processes]))

    def _start(self, rank: int, host: Host, members: Sequence[Member]) -> None:
        pid = os.fork()
        if pid == 0:
            _attached_main(self._program, rank, self._hosts)
            _rank_main(self._program, rank, host, members)
        self._running[rank] = pid, (descriptor := os.pidfd_open(pid))
        self._selector.register(descriptor, selectors.EVENT_READ, partial(self._reap, rank))

    def _wait(self) -> None:
        until_s = time.monotonic() + self._program.limit_s
        while self._running and (left_s := until_s - time.monotonic()) > 0:
            for key, _ in self._selector.select(min(left_s, self._repair.look_s)):
                key.data()
            self._repair.look(time.monotonic())

    def _reap(self, rank: int) -> None:
        """A rank's process has ended, or is about to."""
        pid, descriptor = self._running.pop(rank)
        self._selector.unregister(descriptor)
        os.close(descriptor)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if code < 0:
            self._ends[rank] = RankEnd(signal=-code)
        elif self._program.command:
            self._ends[rank] = attached.end(rank, code)
        elif rank not in self._ends:
            self._ends[rank] = RankEnd(raised=f"nothing, and ended with exit code {code}", known=False)

    def _kill(self) -> None:
        for rank in list(self._running):
            os.kill(self._running[rank][0], signal.SIGKILL)
            self._reap(rank)
            del self._ends[rank]


def _sleep_until_round() -> None:
    time.sleep(_PAUSE_S)
    _sleep_ns((-time.monotonic_ns() - _ALIGNING_NS) % _ROUND_NS)
    namespaces.set_timer_slack(1)
    _align()
    _sleep_ns((-time.monotonic_ns() - _STEP_NS - 2) % _ROUND_NS)
    namespaces.set_timer_slack(0)


def _align() -> None:
    """Sleep until the kernel's time, which has whole ns, is a multiple of what its clock counts in.

    A timer whose end is E rings at E + 1 + (what the clock leaves out). Where the clock is not at E yet, it rings once
    more, 501 ns later: whether it does must be the same in each trial. A timer that ends 2 ns before a step makes what
    is left out one ns less, and where that was nothing, it is late.
    """
    for _ in range(2 * _STEP_NS):
        began_ns = time.monotonic_ns()
        _sleep_ns(_NAP_NS)
        if time.monotonic_ns() - began_ns > _NAP_NS + _LATE_NS:
            break
    for _ in range(_LEFT_NS):
        _sleep_ns(_NAP_NS)


def _sleep_ns(ns: int) -> None:
    # Rounded up to whole ns.
    time.sleep((ns - 0.5) / 1e9)


def _enter(host: Host) -> None:
    """Move this process to a host's network; a sysfs shows the devices of the network that it is mounted in."""
    namespaces.enter(f"/run/netns/{host.name}", namespaces.CLONE_NEWNET)
    namespaces.unshare(namespaces.CLONE_NEWNS)
    namespaces.mount("none", "/", flags=namespaces.MS_REC | namespaces.MS_PRIVATE)
    namespaces.mount("sys", "/sys", "sysfs")


def _attached_main(program: Program, rank: int, hosts: Sequence[Host]) -> None:
    """The process of an end of a command, which never returns; for another program nothing."""
    if not program.command:
        return
    try:
        _enter(hosts[rank])
        attached.become(program, rank, hosts, partial(_before, program.before))
    except BaseException:  # it must not go on as a copy of its parent
        traceback.print_exc()
    os._exit(1)


def _rank_main(program: Program, rank: int, host: Host, members: Sequence[Member]) -> None:
    """A rank's process, which never returns."""
    try:
        _enter(host)
        rendezvous = TrialRendezvous(str(_HUB))
        rendezvous.ended(rank, _work(program, rank, host, members, rendezvous))
    except BaseException:  # it must not go on as a copy of its parent
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _work(program: Program, rank: int, host: Host, members: Sequence[Member], rendezvous: TrialRendezvous) -> RankEnd:
    calls = [RepeatedCall(call, rank, program.ranks) for call in program.calls(rank)]
    recorder = cast("Recorder", NullRecorder())
    process = RankProcess("exhaust", host.nics, rendezvous, recorder)
    exact = checked = late = 0
    try:
        _before(program.before)
        with Communicator("trial", rank, members, process, program.options) as communicator:
            for step in range(program.operations):
                for call in calls:
                    call.fill(step)
                    call(communicator)
                    exact, checked = exact + call.exact(), checked + call.items
            time.sleep(REST_S)
            late = sum(call.items - call.exact() for call in calls) if exact == checked else 0
    except C4Error as error:
        status = error.status if isinstance(error, CollectiveError) else ""
        return RankEnd(exact, checked, raised=f"{type(error).__name__}: {error}", status=status)
    except Exception as error:  # what nobody foresaw is an outcome too
        place = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__}: {error} at {Path(place.filename).name}:{place.lineno}"
        return RankEnd(exact, checked, raised=text, known=False)
    return RankEnd(exact, checked, late)


def _before(place: str) -> None:
    """Call the function `NAME` of `FILE.py:NAME`."""
    if not place:
        return
    path, _, name = place.rpartition(":")
    spec = importlib.util.spec_from_file_location("before", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    getattr(module, name)()


class Guest:
    """Carries out orders in this lab."""

    def __init__(self, orders: Orders, hosts: Sequence[Host]) -> None:
        self._orders, self._hosts = orders, hosts
        self._folder = Path(orders.folder)
        self._counts: dict[Program, Counts | None] = {}

    def run(self) -> int:
        """Try what is ordered; returns 0, or MORE when trials are left for another lab."""
        self._try(self._orders.program, None)  # the first one after boot meets caches that are empty
        undisturbed = self._undisturbed()
        if self._orders.only:
            self._entry(self._orders.only, undisturbed)
            return 0
        done = {entry.event for entry in ledger.read(self._folder) if entry.event}
        events = ordered(packets.counts(undisturbed), self._orders.kinds, self._orders.seed, self._orders.shard)
        todo = [event for event in events if event not in done]
        now = todo[: self._orders.runs] if self._orders.runs else todo
        wrong = []
        for number, event in enumerate(now):
            if number and number % _CHECKED_EVERY == 0:
                self._undisturbed()
            if self._entry(event, undisturbed) == "wrong":
                wrong.append(event)
        self._shrink(wrong, packets.counts(undisturbed))
        return MORE if len(now) < len(todo) else 0

    def _try(self, program: Program, event: Event | None) -> tuple[Outcome, list[Packet]]:
        (self._folder / CURRENT_FILE).write_bytes(msgspec.json.encode(event))
        tried = Trial(program, self._hosts, event).run()
        (self._folder / CURRENT_FILE).unlink()
        return tried

    def _undisturbed(self) -> list[Packet]:
        """The packets of the program without an event. Raises UnhealthyError where it is not exact."""
        began_s = time.monotonic()
        outcome, listed = self._try(self._orders.program, None)
        took_s = time.monotonic() - began_s
        counted, digest = packets.counts(listed), packets.digest(listed)
        (self._folder / f"undisturbed-{digest}.txt").write_text(packets.text(listed))
        ledger.append(
            self._folder, Entry(outcome.verdict, None, outcome.detail, counted, digest=digest, virtual_s=took_s)
        )
        if outcome.verdict != "exact":
            raise UnhealthyError(
                f"{self._orders.program.title}: {outcome.verdict} without any event ({outcome.detail})"
            )
        return listed

    def _entry(self, event: Event, undisturbed: Sequence[Packet]) -> str:
        began_s = time.monotonic()
        outcome, listed = self._try(self._orders.program, event)
        took_s = time.monotonic() - began_s
        placed = packets.same_until_event(listed, undisturbed)
        counted, digest = packets.counts(listed), packets.digest(listed)
        ledger.append(
            self._folder, Entry(outcome.verdict, event, outcome.detail, counted, placed, digest, virtual_s=took_s)
        )
        return outcome.verdict

    def _shrink(self, wrong: Sequence[Event], counts: Counts) -> None:
        """Write a replay of the smallest program for the first trial of each kind that goes wrong again."""
        kinds = dict.fromkeys(event.kind for event in wrong)
        for kind in list(kinds)[:_REPLAYS_MOST] if self._orders.shrinks else ():
            events = [event for event in wrong if event.kind == kind]
            found = smallest(self._orders.program, counts, events, self._outcome, self._count, self._orders.shrinks)
            if found is None:
                continue
            replay = Replay(
                found.program,
                self._orders.seed,
                found.event,
                found.counts.sent,
                found.outcome.verdict,
                found.outcome.detail,
            )
            text = msgspec.json.format(msgspec.json.encode(replay), indent=2)
            name = f"replay-{found.event}.json".replace(":", "-")
            (self._folder / name).write_bytes(text + b"\n")

    def _outcome(self, program: Program, event: Event) -> Outcome:
        return self._try(program, event)[0]

    def _count(self, program: Program) -> Counts | None:
        if program not in self._counts:
            outcome, listed = self._try(program, None)
            self._counts[program] = packets.counts(listed) if outcome.verdict == "exact" else None
        return self._counts[program]


def main(path: Path) -> int:
    """Carry out the orders in a file."""
    orders = msgspec.json.decode(path.read_bytes(), type=Orders)
    hosts = [host for host in inventory.load(Path(INVENTORY)).hosts if host.nics]
    for module in _LATE:
        importlib.import_module(f"c4bench.{module}")
    _fill_caches(orders.program)
    # Ranks are copies of this process: a page is copied when it is written, and the garbage collector writes to all.
    gc.collect()
    gc.freeze()
    with attached.agents(hosts) if orders.program.command else nullcontext():
        return Guest(orders, hosts).run()


def _fill_caches(program: Program) -> None:
    """Compute here what every rank would compute again."""
    for rank in range(program.ranks):
        for call in program.calls(rank):
            repeated = RepeatedCall(call, rank, program.ranks)
            repeated.fill(0)
            repeated.exact()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        try:
            sys.exit(main(Path(sys.argv[1])))
        except C4Error as error:
            sys.stderr.write(f"c4bench: {error}\n")
            sys.exit(error.exit_code)
