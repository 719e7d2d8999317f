"""A master on the bus: it waits until it leads, and has detectors on the bus judge the jobs."""

import asyncio
import logging
import os
import socket
import time
from collections import Counter, defaultdict, deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec

from c4bench.attribution.weigh import Cell
from c4bench.budget import BUS_MESSAGE, Account
from c4bench.bus.connection import FAILURES, Bus, again, bus_tls, for_ever, opened
from c4bench.bus.incoming import SOURCE
from c4bench.bus.jobs import JobEntries, read_finding
from c4bench.bus.leader import Leader
from c4bench.bus.lease import DETECTOR, HeldLease, Renewals, read_lease
from c4bench.bus.reader import StreamReader
from c4bench.bus.server import StreamLimits, make_streams
from c4bench.bus.subjects import Subjects, bucket_key, bucket_stream
from c4bench.c4d.act.doubts import Doubts
from c4bench.control.jobs.job import Job
from c4bench.control.parts import Parts, compose
from c4bench.control.paths.learning import PlannedFabric
from c4bench.control.state.event_log import EventLog
from c4bench.control.state.store import Store
from c4bench.errors import UnhealthyError
from c4bench.model.benign import BenignSlowdown
from c4bench.model.diagnosis import Diagnosis
from c4bench.model.recording import LinkRates, PathsLearnt, PlannerRecord, Record
from c4bench.model.window import Window
from c4bench.wire.trust import Role

_logger = logging.getLogger(__name__)

_READ_S = 0.1
# While the bus is gone, reports of so many are kept.
_WAITING_AT_MOST = 10_000
_encode = msgspec.msgpack.encode


class BusDetection:
    """A `Detection`: tells detectors on the bus what to judge, and reads what they find; `run` connects it.

    Doubts, delay matrices and intervals are in the detectors, so the master does not probe for doubts, and its page
    shows no matrices.
    """

    def __init__(self, bus: Bus, store: Store) -> None:
        self.dropped: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.left_out: Counter[str] = Counter()
        self._bus, self._store = bus, store
        self._jobs: dict[str, Job] = {}
        self._entries, self._renewals = JobEntries(bus), Renewals()
        names = bus.subjects
        self._findings = StreamReader(bus, names.findings, names.every_finding, store.state.findings_read + 1)
        self._leases = StreamReader(bus, bucket_stream(names.leases), bucket_key(names.leases, f"{DETECTOR}>"))
        self._found: list[Diagnosis] = []
        self._arrived: deque[tuple[int, Diagnosis]] = deque()
        self._acts: deque[Callable[[], Awaitable[None]]] = deque()
        self._known: list[Diagnosis] = []
        self.dropped[SOURCE] = self.left_out
        self._counted: dict[str, dict[str, dict[str, int]]] = {}
        # Of the hosts and reasons that detectors name.
        self._named = Account("detectors' counts of what they dropped", BUS_MESSAGE)

    def recall(self, log: EventLog) -> None:
        """Do not publish again what an earlier master has published."""
        self._known = log.diagnoses

    def obstacle(self) -> str:
        """Why nothing is judged; "" if nothing prevents it."""
        if not self._bus.connected:
            return f"the bus {self._bus.address} is gone"
        if self._jobs and not self._renewals.live(DETECTOR, time.monotonic()):
            return "no detector is there: start c4bench detector"
        return ""

    def follow(self, job: Job, now_s: float) -> None:  # noqa: ARG002  (detectors read the server's clock)
        """Have this attempt's telemetry judged from now on."""
        self._jobs[job.spec.id] = job
        self._acts.append(lambda: self._entries.add(job.spec))

    def forget(self, attempt: str) -> None:
        """Have an attempt that has ended no longer judged."""
        if self._jobs.pop(attempt, None) is not None:
            self._acts.append(lambda: self._entries.remove(attempt))

    def ingest(self, attempt: str, record: Record) -> None:
        """Pass on what ranks and probes report; windows come from agents, over the bus."""
        if attempt in self._jobs and not isinstance(record, Window):
            self._send(self._bus.subjects.report(attempt), _encode(record))

    def ingest_fabric(self, record: PlannerRecord) -> None:
        """Pass on what path planning has learnt about the fabric."""
        kinds = {PathsLearnt: "paths", LinkRates: "rates"}
        kind = kinds.get(type(record), "missing")
        self._send(self._bus.subjects.shared(kind, "master"), _encode(record))

    def _send(self, subject: str, body: bytes) -> None:
        async def send() -> None:
            await self._bus.send(subject, body)

        if len(self._acts) < _WAITING_AT_MOST:
            self._acts.append(send)

    def evaluate(self, now_s: float) -> dict[str, list[Diagnosis]]:  # noqa: ARG002
        """What detectors have found since the last call, by attempt; what was returned then has been published."""
        if self._found:
            self._found = []
            self._store.save()
        found: dict[str, list[Diagnosis]] = {}
        while self._arrived:
            number, diagnosis = self._arrived.popleft()
            self._store.state.findings_read = number
            self._found.append(diagnosis)
            if diagnosis.job in self._jobs and diagnosis not in self._known:
                found.setdefault(diagnosis.job, []).append(diagnosis)
        return found

    def poll_benign(self) -> list[BenignSlowdown]:
        """Nothing: detectors log them."""
        return []

    def doubts(self, attempt: str) -> Doubts | None:  # noqa: ARG002
        """None: the detector has them."""
        return None

    def doubtful(self) -> list[str]:
        """None: the detector has them."""
        return []

    def cells(self, attempt: str) -> Mapping[Cell, float]:  # noqa: ARG002
        """Nothing: the detector has them."""
        return {}

    def intervals_s(self, attempt: str) -> tuple[float, ...]:  # noqa: ARG002
        """Nothing: the detector has them."""
        return ()

    async def run(self) -> None:
        """Talk to the bus until cancelled. What fails is done again, in order."""
        while not self._entries.known:
            await again(lambda: self._entries.read(_READ_S))
        for attempt in self._entries.entries.keys() - self._jobs.keys():
            self._acts.append(lambda ended=attempt: self._entries.remove(ended))  # type: ignore[misc]
        async with asyncio.TaskGroup() as tasks:
            for work in (self._act, self._read_findings, self._read_counts):
                tasks.create_task(for_ever(work))

    async def _act(self) -> None:
        if not self._acts:
            await asyncio.sleep(_READ_S)
            return
        await self._acts[0]()
        self._acts.popleft()

    async def _read_findings(self) -> None:
        for stored in await self._findings.read(_READ_S):
            if (found := read_finding(self._bus, stored)) is not None:
                self._arrived.append((stored.sequence, found))

    async def _read_counts(self) -> None:
        """Add up what detectors have dropped, and what was left out here, by host and reason."""
        for stored in await self._leases.read(_READ_S):
            if (held := read_lease(self._bus, stored)) is not None:
                key = stored.subject.split(".", 2)[2]
                self._renewals.renewed(key, stored.sequence, held, time.monotonic())
                self._bus.incoming.used("count", stored.subject, lambda: self._add(key, held))  # noqa: B023  (called at once)
        self._add(SOURCE, HeldLease("", dropped={SOURCE: dict(self._bus.incoming.left_out)}))

    def _add(self, source: str, held: HeldLease) -> None:
        """Add what a detector has dropped since it said so last. Raises OverBudgetError for too many names."""
        before = self._counted.get(source, {})
        more = {host: Counter(reasons) - Counter(before.get(host, {})) for host, reasons in held.dropped.items()}
        fresh = (reasons.keys() - self.dropped.get(host, {}).keys() for host, reasons in more.items())
        self._named.spend(names=sum(map(len, fresh)))
        for host, reasons in more.items():
            self.dropped[host] += reasons
        self._counted[source] = held.dropped


def own_name() -> str:
    """What this process is called on the bus."""
    return f"{socket.gethostname()}-{os.getpid()}"


class LeadingMaster:
    """A master that leads."""

    def __init__(self, address: str, cluster: str, trust: Path, limits: StreamLimits) -> None:
        self._subjects, self._limits = Subjects(cluster), limits
        self._address, self._trust = address, trust
        self.leader = Leader(self._bus(Role.BUS_LEADER), own_name(), self._lost)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._serving: asyncio.Task[None] | None = None

    def _bus(self, role: Role) -> Bus:
        return Bus(self._address, bus_tls(self._trust, role), own_name(), self._subjects, role)

    def _lost(self, _: str) -> None:
        if self._loop is not None and self._serving is not None:
            self._loop.call_soon_threadsafe(self._serving.cancel)

    async def run(self, fabric: PlannedFabric | None, serve: Callable[[Parts], Awaitable[None]]) -> None:
        """Serve as the leader. Raises UnhealthyError when we lead no more."""
        self._loop, self._serving = asyncio.get_running_loop(), asyncio.ensure_future(self._serve(fabric, serve))
        try:
            await self._serving
        except (asyncio.CancelledError, Exception):
            if not self.leader.lost:
                raise
            # Whatever failed, this is why.
            raise UnhealthyError(self.leader.lost) from None

    async def _serve(self, fabric: PlannedFabric | None, serve: Callable[[Parts], Awaitable[None]]) -> None:
        async with opened(self._bus(Role.BUS_MASTER)) as bus:
            await self._make_streams(bus)
            store = Store(self.leader)
            detection = BusDetection(bus, store)
            parts = compose(store, fabric, detection=detection)
            detection.recall(parts.log)
            # Before detectors are told which jobs there are.
            parts.jobs.restore()
            tasks = {asyncio.ensure_future(detection.run()), asyncio.ensure_future(serve(parts))}
            try:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _make_streams(self, bus: Bus) -> None:
        try:
            await make_streams(bus, self._limits)
        except FAILURES as error:
            raise UnhealthyError(f"bus {bus.address}: its streams cannot be made: {error}") from None


@contextmanager
def leading(address: str, cluster: str, trust: Path, keeps_bytes: int) -> Iterator[LeadingMaster]:
    """A master that leads, which is waited for; the bus keeps so much telemetry.

    Raises UnhealthyError if the bus cannot be reached.
    """
    master = LeadingMaster(address, cluster, trust, StreamLimits(size_bytes=keeps_bytes))
    try:
        master.leader.lead()
        yield master
    finally:
        master.leader.close()
