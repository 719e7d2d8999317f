"""Messages of the bus, as a detector and a master decode them: windows, leases, jobs, findings and what is shared."""

import asyncio
import ssl
import time
from collections import Counter, defaultdict
from contextlib import contextmanager
from functools import partial

import msgspec
from fuzz_mutations import Corpus, of
from fuzzing import Target
from nats.aio.msg import Msg

from c4bench.bus import jobs
from c4bench.bus.connection import Bus, Stored
from c4bench.bus.detector import BusDetector
from c4bench.bus.job_follower import JobFollower, JobJudges
from c4bench.bus.jobs import JobEntries, JobEntry, JobFindings
from c4bench.bus.lease import HeldLease
from c4bench.bus.master import BusDetection
from c4bench.bus.reader import StreamReader
from c4bench.bus.subjects import Subjects, bucket_key
from c4bench.control.state.store import Store
from c4bench.model.diagnosis import Component, Diagnosis, NetworkLoss, Syndrome
from c4bench.model.recording import LinkRates, LossReported, PathsLearnt, ProbingEnded
from fuzz_targets.wire import deliveries, encoded_windows, job_spec, loop

_json, _msgpack = msgspec.json.encode, msgspec.msgpack.encode
_SUBJECT = "c4.c4.job.j"


class _Quiet(Bus):
    """A bus without a server, which stores nothing."""

    async def last(self, stream, subject):  # noqa: ARG002
        return None


class _Read:
    """A stream of which the server delivers `arrived` next."""

    caught_up, pending = True, 0

    def __init__(self, *_):
        self.arrived, self._number = [], 0

    def deliver(self, subject, body):
        self._number += 1
        self.arrived.append(Stored(self._number, 10.0 + self._number / 100, subject, body))

    async def read(self, _within_s=0.0):
        arrived, self.arrived = self.arrived, []
        return arrived

    async def read_all(self):
        return await self.read()


def _bus():
    return _Quiet("nats://bus.example:4222", ssl.create_default_context(), "fuzz", Subjects("c4"))


@contextmanager
def _leases(_folder):
    """Values of leases, which detectors and masters watch."""
    with loop() as run:

        async def made():
            return BusDetector(_bus(), "d", JobJudges()), BusDetection(_bus(), Store(None))

        detector, master = run(made())
        detector._leases = master._leases = stream = _Read()

        def consume(data):
            for watch in (detector._watch_leases, master._read_counts):
                for key in ("detector.d2", "job.j"):
                    stream.deliver(bucket_key(detector._bus.subjects.leases, key), data)
                run(watch())
            assert detector._renewals.live("job.", time.monotonic()) is not None

        yield consume


@contextmanager
def _shared(_folder):
    """What detectors and masters share of the fabric."""
    with loop() as run:

        async def made():
            return BusDetector(_bus(), "d", JobJudges())

        detector = run(made())
        detector._shared = stream = _Read()

        def consume(data):
            stream.deliver("c4.c4.fabric.traffic.other", data)
            run(detector._watch_fabric())

        yield consume


@contextmanager
def _jobs(_folder):
    """Entries of jobs, and the names in their keys."""
    with loop() as run:
        entries = JobEntries(_bus())
        entries._reader = stream = _Read()

        def consume(data):
            stream.deliver(bucket_key(entries._bucket, "j"), data)
            run(entries.read(0.0))

        yield consume


@contextmanager
def _findings(_folder):
    """Findings, which detectors load and masters publish."""
    with loop() as run:

        async def made():
            return BusDetection(_bus(), Store(None)), JobFindings(_bus(), "j")

        stream, before = _Read(), jobs.StreamReader
        jobs.StreamReader = lambda *_: stream
        master, own = run(made())
        master._findings = stream

        def consume(data):
            for read in (own.load, master._read_findings):
                stream.deliver("c4.c4.finding.j", data)
                run(read())
            master.evaluate(10.0)
            own._known.clear()

        try:
            yield consume
        finally:
            jobs.StreamReader = before


@contextmanager
def _follower(_folder, subjects):
    """A job's messages on these subjects, one after the other, as its detector reads and judges them."""
    with loop() as run:
        spec = job_spec("j")

        async def made():
            judge, dropped = JobJudges().judge(spec, defaultdict(Counter)), defaultdict(Counter)
            return JobFollower(_bus(), JobEntry(spec, 1), judge, dropped, HeldLease(""), asyncio.Lock())

        follower = run(made())
        number = [0]

        async def ingest(stored):
            follower._ingest(stored)

        def consume(data):
            for at, message in enumerate(deliveries(data)):
                number[0] += 1
                subject = subjects[min(at, len(subjects) - 1)]
                if subject.endswith(".change"):
                    follower._windows.note_names("h0", message, begins=False)
                run(ingest(Stored(number[0], 1.0, subject, message)))

        yield consume


@contextmanager
def _subjects(_folder):
    """Subjects and keys that a publisher chose, as a job's detector and the reader of jobs take them."""
    with loop() as run:
        spec, number = job_spec("j"), [0]

        async def made():
            judge, dropped = JobJudges().judge(spec, defaultdict(Counter)), defaultdict(Counter)
            return JobFollower(_bus(), JobEntry(spec, 1), judge, dropped, HeldLease(""), asyncio.Lock())

        follower, entries, body = run(made()), JobEntries(_bus()), encoded_windows()[0]
        entries._reader = stream = _Read()

        async def ingest(stored):
            follower._ingest(stored)

        def consume(data):
            number[0] += 1
            subject = data.decode(errors="replace")
            run(ingest(Stored(number[0], 1.0, subject, body)))
            stream.deliver(subject, _msgpack(JobEntry(spec, 1)))
            run(entries.read(0.0))

        yield consume


@contextmanager
def _headers(_folder):
    """Messages with headers and subjects that their publisher chose."""
    with loop() as run:
        bus, number = _bus(), [0]

        async def read(subject, headers):
            reader = StreamReader(bus, "stream", ">")
            number[0] += 1
            reader._word_s, reader._subscription = time.monotonic(), await _Unsubscribed.made()
            reader._inbox = "_INBOX.fuzz.1"
            reply = f"$JS.ACK.stream.consumer.1.{number[0]}.1.1700000000000000000.0"
            reader._arrived.append(Msg(bus.client, subject, reply, b"", headers))
            found = await reader.read(0.0)
            assert len(found) == 1, "a message of a publisher is taken for one of the server"

        def consume(data):
            try:
                given = msgspec.json.decode(data, type=_Published)
            except (msgspec.MsgspecError, ValueError, RecursionError):
                return
            run(read(given.subject, given.headers))

        yield consume


class _Published(msgspec.Struct):
    subject: str
    headers: dict[str, str] | None = None


class _Unsubscribed:
    @classmethod
    async def made(cls):
        return cls()

    async def unsubscribe(self):
        """Nothing was subscribed to."""


def _windows():
    encoded = encoded_windows()
    return Corpus("msgpack", (_msgpack([msgspec.Raw(one) for one in encoded]), encoded[0], encoded[1]))


def _reports():
    loss = NetworkLoss(0, Component("nic", "h0/0"), 1.0)
    records = (LossReported(1.0, "j", "j:data", loss), ProbingEnded(1.0, "j"))
    return Corpus("msgpack", tuple(map(_msgpack, records)))


def _fabric():
    records = (PathsLearnt(1.0, (("h0/0", "h1/0", 49152, ("leaf0", "h1/0")),)), LinkRates(1.0, {"leaf0": 1e10}))
    return Corpus("msgpack", tuple(map(_msgpack, records)))


def _held():
    component = Component("nic", "h0/0")
    held = HeldLease("d2", 3, 10.0, 2.0, {"h0": 7}, (component,), {"h0": {"old window": 3}})
    return Corpus("json", (_json(held), _json(HeldLease(""))))


def _diagnoses():
    component = Component("nic", "h0/0")
    one = Diagnosis(
        "j", Syndrome.COMMUNICATION_HANG, component, 1.0, 2.0, 3.0, 0.9, ("because",), "else", alternatives=(component,)
    )
    return Corpus("json", (_json(one),))


def _published():
    status = {"subject": f"{_SUBJECT}.window.h0", "headers": {"Status": "409", "KV-Operation": "DEL"}}
    return Corpus(
        "json", (_json(status), _json({"subject": "c4.c4.finding.j", "headers": {"Nats-Last-Consumer": "x"}}))
    )


_NAMES = (f"{_SUBJECT}.names.h0.begin", f"{_SUBJECT}.names.h0.change", f"{_SUBJECT}.window.h0")
TARGETS = (
    Target("bus-lease", _held, _leases),
    Target("bus-fabric", _fabric, _shared),
    Target("bus-job", of("msgpack", _msgpack(JobEntry(job_spec("j"), 1))), _jobs),
    Target("bus-finding", _diagnoses, _findings),
    Target("bus-window", _windows, partial(_follower, subjects=_NAMES)),
    Target("bus-report", _reports, partial(_follower, subjects=(f"{_SUBJECT}.report",))),
    Target("bus-subject", of("text", *(name.encode() for name in (*_NAMES, "$KV.c4_c4_jobs.j"))), _subjects),
    Target("bus-headers", _published, _headers, sound=False),
)
