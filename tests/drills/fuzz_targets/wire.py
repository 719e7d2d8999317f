"""Messages to the master: of agents, of ranks through their agents, and of operators; windows; reports of RAS."""

import asyncio
import gzip
from contextlib import contextmanager
from types import SimpleNamespace

import msgspec
from fuzz_mutations import Corpus, of
from fuzzing import Target

from c4bench.c4d.detector import Detector
from c4bench.c4p.controller import PathController
from c4bench.control.detection.ras_reports import RasReports
from c4bench.control.detection.windows import WindowParts
from c4bench.control.jobs.job import Job
from c4bench.control.parts import compose
from c4bench.control.paths.learning import PlannedFabric
from c4bench.control.sessions import OperatorSession
from c4bench.control.state.store import Store
from c4bench.errors import UnhealthyError
from c4bench.model.diagnosis import Component, NetworkLoss
from c4bench.model.fabric import Flow, Host, Nic
from c4bench.model.recording import Evaluated
from c4bench.model.steering import Policy
from c4bench.model.telemetry import (
    ArrivalRecord,
    CommRecord,
    ConnRecord,
    Failure,
    Member,
    NicRecord,
    OpRecord,
    RankRecord,
)
from c4bench.wire import messages
from c4bench.wire.channel import ChannelClosed
from c4bench.wire.messages import (
    Answer,
    Call,
    Hello,
    JobSpec,
    LaunchJob,
    Meeting,
    Note,
    QueryProgress,
    RasReport,
    StartRanks,
)
from c4bench.wire.peer import Peer
from c4bench.wire.probes import ProbeAnswer
from c4bench.wire.trust import Role
from c4bench.wire.window_codec import WindowDecoder, WindowEncoder, from_message
from fuzz_targets.evidence import RAS_JSON, RAS_TEXT
from tools.bench.fabrics import clos
from tools.sim.windows import window_of

HOSTS = 4
NICS = tuple(Nic(f"h{number}", 0, "rxe0", "eth9", f"10.0.0.{number}", 1e10) for number in range(HOSTS))
_TURNS = 12
_encode = msgspec.msgpack.encode


def job_spec(name, hosts=HOSTS, meeting=None):
    """A job with a rank on each host."""
    members = tuple(Member(rank, f"h{rank}", (f"h{rank}/0",), rank) for rank in range(hosts))
    return JobSpec(name, "none", members, NICS[:hosts], meeting=meeting)


def a_window(sequence=1, host="h0"):
    """A window of a host whose rank is in an operation of two."""
    comm = CommRecord("j:data", "j", (Member(0, "h0", ("h0/0",), 0), Member(1, "h1", ("h1/0",), 1)))
    op = OpRecord("j:data", 0, 3, "all_reduce", "ring", "float32", 64, 1.0, 1.0, 0.0, (1,))
    conn = ConnRecord("j:data", 0, 1, "h0/0", "h1/0", 7, 49152, 3, 64, 0.1, 0.0, 0.1, 0.1, 1.0, 1, 0, "transfer", 1.5)
    end = ArrivalRecord("j:data", 0, 1, "h1/0", "h0/0", 8, 3, 3, 30)
    nic, rank = NicRecord("h0/0", "linkup", 0, 0, 0), RankRecord("j", 0, host, 7, "running")
    return window_of(host, sequence, sequence, sequence + 1.0, (comm,), (rank,), (op,), (conn,), (end,), (nic,))


def encoded_windows(count=3):
    """Messages with windows of a host, of which the first has its names."""
    encoder = WindowEncoder()
    return tuple(_encode(encoder.encode(a_window(number))) for number in range(1, count + 1))


class Delivered:
    """A channel on which messages arrive before it is closed; `sent` has the answers."""

    def __init__(self, data):
        self._left = deliveries(data)
        self.sent = []

    async def receive(self):
        """The next message; at the end, handlers get some turns before the channel is closed."""
        if self._left:
            return self._left.pop(0)
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        raise ChannelClosed("closed")

    async def send(self, data):
        """An answer must be a message."""
        self.sent.append(msgspec.msgpack.decode(data))
        del self.sent[:-10]

    async def close(self):
        """Nothing is left to close."""


def deliveries(data):
    """The messages of an input: a list of several, or what cannot be one as it is."""
    try:
        return [bytes(one) for one in msgspec.msgpack.decode(data, type=list[msgspec.Raw])]
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return [data]


@contextmanager
def loop():
    """`run(coroutine)` on one loop."""
    with asyncio.Runner() as runner:
        runner.get_loop()
        yield runner.run


def _script(*calls):
    """Messages of one connection, as an input."""
    sent = [Call(number, method, msgspec.Raw(_encode(body))) for number, (method, body) in enumerate(calls, start=1)]
    return _encode(sent)


@contextmanager
def _master(folder):
    """The parts of a master with saved state, a fabric, and a running job; `run` runs a coroutine on its loop."""
    with loop() as run:

        async def made():
            parts = compose(Store(folder / "state"))
            fabric = clos(HOSTS, 2, 2)
            parts.paths.plan(PlannedFabric([Host(f"h{number}", "", (NICS[number],)) for number in range(HOSTS)]))
            pairs = [("h0/0", "h1/0"), ("h0/0", "h2/0"), ("h1/0", "h0/0")]
            controller = parts.paths.controller
            controller.begin_learning(pairs, 1.0, changed=True)
            controller.learn(
                {(*pair, 49153 + spine): fabric.hops(*pair, spine) for pair in pairs for spine in (0, 1)}, 1.0
            )
            controller.end_learning(1.0)
            for name, meeting in (("j", Meeting("m", 4)), ("k", None)):
                spec = job_spec(name, meeting=meeting)
                parts.registry.add(LaunchJob(spec))
                parts.attempts.admit(spec, followed=True)
            return parts

        parts = run(made())
        try:
            yield parts, run
        finally:
            parts.store.close()


def _starts_again(folder):
    """Another master reads what this one has saved."""
    copy = folder / "again"
    copy.mkdir(exist_ok=True)
    for path in (folder / "state").glob("*.json"):
        (copy / path.name).write_bytes(path.read_bytes())
    store = Store(copy)
    store.close()


@contextmanager
def _agent(folder):
    """The connection of the agent of h0."""
    with _master(folder) as (parts, run):
        connection = SimpleNamespace(protocol=SimpleNamespace(close_code=1006))

        async def serve(data):
            channel, closing = Delivered(data), asyncio.Event()
            await parts.sessions.serve(connection, channel, "h0", closing)
            inbox = parts.telemetry._inbox
            while inbox._waiting:
                await inbox._pass_on(inbox._waiting.pop(next(iter(inbox._waiting))))
            parts.detection.evaluate(10.0)

        def consume(data):
            run(serve(data))
            parts.health.read()
            _starts_again(folder)

        yield consume


def _agent_corpus():
    flow = Flow("j/j:data/0>1/0.0", "j", "h0/0", "h1/0", 1e10)
    hello = (
        "hello",
        Hello("h0", "0.1.0", "abc", "", (StartRanks(job_spec("j"), (0,)), StartRanks(job_spec("new"), (0,)))),
    )
    failure, loss = Failure(0, "reason", "error"), NetworkLoss(0, Component("nic", "h0/0"), 1.0)
    calls = (
        ("route", messages.Route("j", (flow,))),
        ("qps", messages.ChooseQps("j", (("h0/0", "h1/0"),))),
        ("follow", messages.FollowGuidance("j", (flow,), (49152,), (1.0,), {flow.id: "no"})),
        ("release", messages.Release("j", (flow.id,))),
        ("exchange", messages.Exchange("j", "j:data", "key", 0, 2, b"payload", 0.0)),
        ("meet", messages.Meet("j", 0, "moment")),
        ("watch", messages.Watch("j", "j:data")),
        ("word", messages.RelayMessage("j", "j:data", 0, 1, b"body")),
        ("news", messages.PollInbox("j", "j:data", 0, 0)),
        ("lost", messages.NetworkLost("j", "j:data", loss)),
        ("result", messages.Result("j", 0, {"kind": "error", "error": "x"}, 1)),
        ("fail", messages.Fail("k", "k:data", failure)),
        ("ras", RasReport(gzip.compress(RAS_TEXT, mtime=0))),
    )
    windows = [Note("window", msgspec.Raw(one)) for one in encoded_windows()]
    abandon = [
        Call(7, "watch", msgspec.Raw(_encode(messages.Watch("j", "j:x")))),
        Note("abandon", msgspec.Raw(_encode(7))),
    ]
    return Corpus("msgpack", (_script(hello, *calls), *(_script(one) for one in (hello, *calls)), _encode(windows),
                              _encode(abandon)))  # fmt: skip


@contextmanager
def _operator(folder):
    """The connection of an operator."""
    with _master(folder) as (parts, run):

        async def serve(data):
            peers = parts.log, parts.jobs, parts.paths, parts.health.read
            await OperatorSession(Delivered(data), Role.OPERATOR, "127.0.0.1", *peers).serve()

        def consume(data):
            run(serve(data))
            parts.health.read()
            _starts_again(folder)

        yield consume


def _operator_corpus():
    spec = job_spec("new", meeting=Meeting("m", 4))
    calls = (
        ("subscribe", messages.Subscribe(0)),
        ("health", messages.Empty()),
        ("launch", LaunchJob(spec, Policy(), (Host("spare", "10.0.1.0", (NICS[0],)),))),
        ("stop", messages.StopRanks("k")),
        ("restore", messages.ReturnHost("h3")),
        ("ask", messages.QueryResults("j", "ready", 0.0, 1)),
        ("progress", QueryProgress("j", "j", 0, 0, 0.0)),
        ("learn", messages.LearnPaths(("h0", "h1"))),
    )
    return Corpus("msgpack", (_script(*calls), *map(_script, calls)))


@contextmanager
def _answers(_folder):
    """An agent's answer to a call of the master."""
    with loop() as run:

        async def ask(data):
            channel = Delivered(data)
            peer = Peer(channel, {})
            serving = asyncio.create_task(peer.serve())
            try:
                await peer.call("probe", messages.Empty(), ProbeAnswer)
            finally:
                await serving

        yield lambda data: run(ask(data))


def _answer_corpus():
    body = msgspec.Raw(_encode(ProbeAnswer(())))
    return Corpus("msgpack", (_encode([Answer(1, body)]),))


@contextmanager
def _windows(_folder):
    """Windows of one connection, decoded, cut into jobs' parts and judged: one decoder and detector for all inputs."""
    decoder, detector, paths = WindowDecoder(), Detector(), PathController()
    parts = WindowParts({"j": Job(job_spec("j"))})

    def consume(data):
        for message in deliveries(data):
            window = decoder.decode(from_message(message))
            own, _ = parts.own(window)
            paths.ingest(own)
            for part in parts.parts(own).values():
                detector.ingest_window(part)
            detector.ingest(Evaluated(own.end_s if own.end_s < 1e9 else 2.0))

    yield consume


@contextmanager
def _ras_reports(_folder):
    """Reports of RAS that agents pass on: one part of the master for all inputs."""
    with loop() as run:
        published = []
        reports, now = RasReports(lambda *one: published.append(one), lambda *_: None), [0.0]

        def consume(data):
            now[0] += 20.0
            run(reports.ingest(f"h{now[0] % 3}", gzip.compress(data, 1), now[0]))
            published.clear()

        yield consume


_UNREADABLE = (msgspec.DecodeError, UnicodeError, RecursionError)
TARGETS = (
    Target("wire-agent", _agent_corpus, _agent),
    Target("wire-operator", _operator_corpus, _operator),
    Target("wire-answer", _answer_corpus, _answers, (UnhealthyError,)),
    Target("wire-window", of("msgpack", _encode([msgspec.Raw(one) for one in encoded_windows()]),
                                                     *encoded_windows(1)), _windows, _UNREADABLE),
    Target("wire-ras", of("text", RAS_TEXT, RAS_JSON), _ras_reports),
)  # fmt: skip
