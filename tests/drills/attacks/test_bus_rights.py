"""Attacks on the bus with a certificate of each role: what a role does not need, nats-server refuses."""

import asyncio
import json
import ssl

import pytest
from bus_scene import SUBJECTS, BusScene, needs_nats

from c4bench.bus.connection import Bus, bus_tls, opened
from c4bench.bus.reader import StreamReader
from c4bench.bus.server import StreamLimits, make_state, make_streams
from c4bench.errors import UnhealthyError
from c4bench.wire.trust import Role

pytestmark = needs_nats
S = SUBJECTS
SHARED = (S.telemetry, S.names, S.findings, S.fabric, f"KV_{S.jobs}", f"KV_{S.leases}")
MASTERS = (f"KV_{S.state}", f"KV_{S.leader}")
VERBS = (
    *(f"$JS.API.STREAM.{verb}" for verb in ("CREATE", "UPDATE", "INFO", "PURGE", "DELETE", "MSG.GET", "MSG.DELETE")),
    *(f"$JS.API.STREAM.{verb}" for verb in ("SNAPSHOT", "RESTORE", "PEER.REMOVE", "LEADER.STEPDOWN")),
    *(f"$JS.API.CONSUMER.{verb}" for verb in ("CREATE", "LIST", "NAMES")),
    "$JS.API.DIRECT.GET",
)
OF_CONSUMERS = ("CREATE", "DURABLE.CREATE", "INFO", "DELETE", "MSG.NEXT", "LEADER.STEPDOWN")
DATA = (
    S.window("job0", "h0"),
    S.window("job0", "h1"),
    S.window("job0", "h0", "begin"),
    S.window("job0", "h1", "begin"),
    "c4.c4.job.job0.names.h0.other",
    S.report("job0"),
    S.finding("job0"),
    "c4.c4.finding.a.b",
    *(S.shared(kind, "master") for kind in ("paths", "rates", "missing")),
    S.shared("traffic", "d1"),
    f"$KV.{S.jobs}.job0",
    f"$KV.{S.leases}.job.job0",
    f"$KV.{S.leases}.detector.d1",
    f"$KV.{S.leases}.master",
    f"$KV.{S.leader}.master",
    f"$KV.{S.state}.file.x",
    "_INBOX.bus-master.x.y",
    "_INBOX.detector.x.y",
    "_INBOX.bus-leader.x.y",
    "_INBOX.x.y",
    "$SYS.REQ.SERVER.PING",
    "$SYS.REQ.ACCOUNT.shared.CONNZ",
    "$SRV.PING",
    "$JS.API.INFO",
    "$JS.API.STREAM.NAMES",
    "$JS.API.STREAM.LIST",
    "$JS.API.META.LEADER.STEPDOWN",
    "$JS.API.ACCOUNT.PURGE.shared",
    "c4.other.finding.job0",
    "x",
)


def of_stream(stream):
    """Every subject of JetStream about a stream."""
    consumers = (f"$JS.API.CONSUMER.{verb}.{stream}.one" for verb in OF_CONSUMERS)
    others = (
        f"$JS.API.DIRECT.GET.{stream}.{S.finding('job0')}",
        f"$JS.ACK.{stream}.one.1.1.1.1.0",
        f"$JS.FC.{stream}.one.x",
    )
    return [*(f"{verb}.{stream}" for verb in VERBS), *consumers, *others]


def reads(*streams):
    """What a reader of streams publishes."""
    return {
        subject
        for stream in streams
        for subject in (
            f"$JS.API.STREAM.MSG.GET.{stream}",
            f"$JS.API.CONSUMER.CREATE.{stream}",
            f"$JS.FC.{stream}.one.x",
        )
    }


def owns(*streams):
    """What whoever makes streams publishes."""
    verbs = ("CREATE", "UPDATE", "INFO", "PURGE")
    return reads(*streams) | {f"$JS.API.STREAM.{verb}.{stream}" for verb in verbs for stream in streams}


EVERY = [*DATA, *(subject for stream in (*SHARED, *MASTERS) for subject in of_stream(stream))]
MAY_PUBLISH = {
    "h0": {S.window("job0", "h0"), S.window("job0", "h0", "begin")},
    "detector": reads(*SHARED)
    | {f"$JS.API.STREAM.PURGE.KV_{S.leases}", S.finding("job0"), S.shared("traffic", "d1")}
    | {f"$KV.{S.leases}.job.job0", f"$KV.{S.leases}.detector.d1"},
    "bus-master": owns(*SHARED)
    | {S.report("job0"), f"$KV.{S.jobs}.job0"}
    | {S.shared(kind, "master") for kind in ("paths", "rates", "missing")},
    "bus-leader": owns(*MASTERS) | {f"$KV.{S.leader}.master", f"$KV.{S.state}.file.x"},
}
READ = (">", "*.>", "c4.>", "$KV.>", "$JS.>", "$JS.API.>", "$SYS.>", "_INBOX.>", "_INBOX.*.>", "_INBOX.*.x.*")
INBOXES = {role: {f"_INBOX.{role}.x.*", f"_INBOX.{role}.x.y"} for role in MAY_PUBLISH}
MAY_SUBSCRIBE = INBOXES | {"h0": set()}


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    """nats-server with the streams of a cluster."""

    async def prepare(scene):
        async with opened(scene.bus()) as shared, opened(scene.bus(Role.BUS_LEADER)) as leader:
            await make_streams(shared, StreamLimits())
            await make_state(leader)

    with BusScene(tmp_path_factory.mktemp("rights")) as scene:
        asyncio.run(prepare(scene))
        yield scene


class Recorded(Bus):
    """A connection that keeps what nats-server says was a violation."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.violations = []

    async def _failed(self, error):
        self.violations.append(str(error))

    async def refused(self, subjects):
        """Those of these subjects that were refused, once no more are; nats-py gives them in lower case."""
        before = -1
        while before < len(self.violations):
            before = len(self.violations)
            await self.client.flush(5)
            await asyncio.sleep(0.2)
        said = " ".join(self.violations)
        return {subject for subject in subjects if f'"{subject.lower()}"' in said}


def recorded(scene, name):
    """A connection with the certificate of this name."""
    return Recorded(scene.bus_address, bus_tls(scene.trust, name), name, S, name)


def held(scene):
    """What the streams of the masters hold, which nobody else may change."""

    async def look():
        async with opened(scene.bus(Role.BUS_LEADER)) as leader:
            return [
                (stored.subject, stored.body)
                for stream in MASTERS
                for stored in await StreamReader(leader, stream, ">").read_all()
            ]

    return asyncio.run(look())


def attempt(scene, name, work):
    """What `work` returns of a connection with the certificate of this name, when nats-server has done it all."""

    async def play():
        bus = recorded(scene, name)
        async with opened(bus):
            found = await work(bus)
            await bus.client.flush(5)
            await asyncio.sleep(0.2)
            return found

    return asyncio.run(play())


@pytest.mark.attack("a role publishes on every subject")
@pytest.mark.parametrize("name", MAY_PUBLISH)
def test_a_role_publishes_on_its_own_subjects_only(scene, name):
    """Of all subjects of the bus and of JetStream's interface, each role may use those that it needs, and no others."""

    async def publish(bus):
        for subject in EVERY:
            # An answer to what is permitted would be about this request, which is none.
            await bus.client.publish(subject, b"[]")
        return await bus.refused(EVERY)

    assert attempt(scene, name, publish) == set(EVERY) - MAY_PUBLISH[name]


@pytest.mark.attack("a role subscribes to the whole bus")
@pytest.mark.parametrize("name", MAY_SUBSCRIBE)
def test_a_role_reads_its_own_answers_only(scene, name):
    """Of all subjects, and of patterns that hold them, each role may read the answers to its own requests."""
    wanted = {*READ, *EVERY}.union(*INBOXES.values())

    async def subscribe(bus):
        for subject in sorted(wanted):
            await bus.client.subscribe(subject)
        return await bus.refused(wanted)

    assert attempt(scene, name, subscribe) == wanted - MAY_SUBSCRIBE[name]


@pytest.mark.attack("variant: an agent reads what others publish")
def test_an_agent_reads_nothing(scene):
    """Nothing of what a detector publishes comes to an agent, whatever it has subscribed to."""
    came = []

    async def listen(bus):
        async def receive(message):
            came.append(message.subject)

        for subject in READ:
            await bus.client.subscribe(subject, cb=receive)
        await bus.client.flush(5)
        async with opened(scene.bus("detector")) as detector:
            await detector.client.publish(S.finding("secret"), b"{}")
            await detector.client.flush(5)
            await asyncio.sleep(0.2)

    attempt(scene, "h0", listen)
    assert came == []


@pytest.mark.attack("variant: an acknowledgement as a request")
@pytest.mark.parametrize("name", ["h0", "detector"])
def test_an_answer_reaches_no_subject_of_the_masters(scene, name):
    """Where nats-server is told to answer on a subject that the asker may not use, the masters' state stays as it is.

    An acknowledgement of a message in a stream is also a valid request to empty another stream.
    """

    async def write(leader):
        await leader.publish(f"$KV.{S.state}.file.x", b"kept")
        await leader.publish(f"$KV.{S.leader}.master", b'{"holder": "m"}')

    attempt(scene, Role.BUS_LEADER, write)
    before = held(scene)
    targets = (
        *(f"$JS.API.STREAM.PURGE.{stream}" for stream in MASTERS),
        f"$KV.{S.state}.file.x",
        f"$KV.{S.leader}.master",
    )

    async def ask(bus):
        asked = [(S.window("job0", "h0"), b"x")] if name == "h0" else [(S.finding("job0"), b"{}")]
        if name == "detector":
            asked.append(
                (f"$JS.API.STREAM.MSG.GET.{S.findings}", json.dumps({"last_by_subj": S.finding("job0")}).encode())
            )
        for target in targets:
            for subject, body in asked:
                await bus.client.publish(subject, body, reply=target)
            config = {"deliver_subject": target, "ack_policy": "none", "deliver_policy": "all"}
            request = json.dumps({"stream_name": S.findings, "config": config}).encode()
            await bus.client.publish(f"$JS.API.CONSUMER.CREATE.{S.findings}", request)

    attempt(scene, name, ask)
    assert held(scene) == before


@pytest.mark.attack("variant: an agent has windows of another host written")
def test_an_agent_has_nothing_written_for_another_host(scene):
    """What nats-server answers to an agent's message is no message of another host's agent, nor a request."""
    other = S.window("answered", "h1")

    async def ask(bus):
        for target in (other, f"$JS.API.STREAM.PURGE.{S.telemetry}", f"$JS.API.STREAM.PURGE.KV_{S.leases}"):
            await bus.client.publish(S.window("answered", "h0"), b"x", reply=target)

    async def look():
        async with opened(scene.bus()) as bus:
            await bus.js.purge_stream(S.telemetry)
            await bus.publish(f"$KV.{S.jobs}.kept", b"x")
            await asyncio.to_thread(attempt, scene, "h0", ask)
            return [stored.subject for stored in await StreamReader(bus, S.telemetry, ">").read_all()]

    assert asyncio.run(look()) == [S.window("answered", "h0")] * 3


@pytest.mark.attack("variant: one message removes all keys")
def test_no_message_removes_other_keys(scene):
    """A message that says that it takes the place of all others in a bucket is refused, or stands beside them."""
    keys = [f"$KV.{S.leases}.detector.d{number}" for number in range(2)]

    async def roll_up(bus):
        await bus.client.publish(keys[0], b"{}")
        await bus.client.publish(keys[1], b"{}", headers={"Nats-Rollup": "all"})
        await bus.client.flush(5)
        return {stored.subject for stored in await StreamReader(bus, f"KV_{S.leases}", ">").read_all()}

    assert keys[0] in attempt(scene, "detector", roll_up)


@pytest.mark.attack("variant: a certificate of another role")
@pytest.mark.parametrize("name", ["operator", "observer", "master", "bus"])
def test_a_certificate_of_no_role_on_the_bus_is_refused(scene, name):
    """Operators, observers and servers have no business on the bus, and do not get in; one line says so."""

    async def connect():
        async with opened(recorded(scene, name)):
            pass

    with pytest.raises(UnhealthyError, match="bus nats://") as said:
        asyncio.run(connect())
    assert "\n" not in str(said.value)


@pytest.mark.attack("variant: no certificate")
def test_nobody_gets_in_without_a_certificate(scene):
    """Who shows no certificate is refused in the handshake."""
    bare = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    bare.load_verify_locations(scene.trust / "ca.pem")

    async def connect():
        async with opened(Bus(scene.bus_address, bare, "nobody", S)):
            pass

    with pytest.raises(UnhealthyError):
        asyncio.run(connect())
