"""Attacks with what is published on the bus: whatever it says, it ends no reader, no detector and no master."""

import asyncio
import contextlib
import json
import math
import random
import signal
import time
from collections import Counter
from functools import partial

import msgspec
import pytest
from bus_scene import HOSTS, SUBJECTS, BusScene, SimulatedJobs, needs_nats

from c4bench.budget import BUS_VALUE, OverBudgetError
from c4bench.bus import detector, incoming, job_follower, jobs, lease
from c4bench.bus.connection import opened
from c4bench.bus.job_follower import LOST, UNREADABLE, HostWindows
from c4bench.bus.reader import StreamReader
from c4bench.bus.subjects import place
from c4bench.decoding import DecodingError
from c4bench.model.telemetry import Member
from c4bench.wire.messages import JobSpec
from c4bench.wire.window_codec import FORMAT

S = SUBJECTS
# No message of the bus may take more processor time of a detector.
AT_ONCE_S = 0.1
WITHIN_S = 20.0
SPEC = JobSpec("job0", "pulse", tuple(Member(rank, host, ()) for rank, host in enumerate(HOSTS)), ())
KINDS = (lease.LEASE, jobs.FINDING, jobs.ENTRY, detector.SHARED, job_follower.REPORT)


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    """nats-server, a master and two detectors."""
    with BusScene(tmp_path_factory.mktemp("messages")) as scene:
        scene.master = scene.start_master()
        scene.detectors = {each.pid: each for each in (scene.start_detector(), scene.start_detector())}
        yield scene


async def publish_raw(bus, subject, headers, body=b"x"):
    """Publish with headers and a subject as these bytes are, which nats-py would write in its own way."""
    line = b"HPUB %s %d %d\r\n" % (subject, len(headers), len(headers) + len(body))
    await bus.client._send_command(line + headers + body + b"\r\n")
    await bus.client.flush(5)


STATUSES = [
    *(b"NATS/1.0\r\nStatus: %d\r\n\r\n" % code for code in (100, 404, 408, 409, 503)),
    *(b"NATS/1.0 %d Given Up\r\n\r\n" % code for code in (100, 404, 408, 409, 503)),
]
GARBAGE_HEADERS = [
    b"NATS/1.0 4\xff\xfe\r\n\r\n",
    b"NATS/1.0 100 Idle\xff\r\nNats-Last-Consumer: 9\xff\r\n\r\n",
    b"NATS/1.0 100\r\nNats-Consumer-Stalled: $JS.API.STREAM.PURGE.x\r\n\r\n",
    b"NATS/1.0\r\nStatus: 100\r\nNats-Last-Consumer: 4611686018427387904\r\n\r\n",
    b"NATS/1.0\r\n\xff\x00\r\n:\r\n\r\n",
    b"NATS/1.0\r\nKV-Operation: \xff\r\n\r\n",
]


@needs_nats
@pytest.mark.parametrize(
    "headers",
    [
        *(pytest.param(one, marks=pytest.mark.attack("a published status")) for one in STATUSES),
        *(pytest.param(one, marks=pytest.mark.attack("variant: headers")) for one in GARBAGE_HEADERS),
    ],
    ids=lambda headers: repr(headers[8:24]),
)
def test_a_published_header_is_not_the_server_s(scene, headers, caplog):
    """Every message that an agent has published is read, once and in order, whatever its headers say."""
    window = S.window("statuses", "h0").encode()

    async def play():
        async with opened(scene.bus("h0")) as agent, opened(scene.bus("detector")) as bus:
            newest = await bus.last(S.telemetry, window.decode())
            reader = StreamReader(bus, S.telemetry, S.job("statuses"), (newest.sequence if newest else 0) + 1)
            for number in range(3):
                await publish_raw(agent, window, headers, b"%d" % number)
            read, until_s = [], time.monotonic() + WITHIN_S
            while len(read) < 3 and time.monotonic() < until_s:
                read += await reader.read(0.1)
            await reader.close()
            return [stored.body for stored in read], bus.reconnects

    assert asyncio.run(play()) == ([b"0", b"1", b"2"], 0)
    assert "begins again" not in caplog.text


@needs_nats
@pytest.mark.attack("variant: a subject that is no text")
@pytest.mark.parametrize("name", [b"\xff\xfe", b"a\x0cb", b"a\x0bb", b"=FF", b"=41", b"x" * 3000])
def test_a_subject_ends_no_reader(scene, name):
    """Bytes in a subject that are no text, or no name, are read past."""
    subject = b"c4.c4.finding." + name

    async def play():
        async with opened(scene.bus("detector")) as writer, opened(scene.bus()) as bus:
            newest = await bus.last(S.findings, S.finding("later"))
            reader = StreamReader(bus, S.findings, S.every_finding, (newest.sequence if newest else 0) + 1)
            await publish_raw(writer, subject, b"NATS/1.0\r\n\r\n")
            await publish_raw(writer, S.finding("later").encode(), b"NATS/1.0\r\n\r\n")
            read, until_s = [], time.monotonic() + WITHIN_S
            while not (read and read[-1].subject == S.finding("later")) and time.monotonic() < until_s:
                read += await reader.read(0.1)
            await reader.close()
            return len(read), bus.reconnects

    assert asyncio.run(play()) == (2, 0)


def encoded(**fields):
    """A window of the host, with these fields."""
    window = {"format": FORMAT, "host": "h0", "sequence": 1, "start_s": 1.0, "end_s": 2.0, **fields}
    return msgspec.msgpack.encode(window)


def received(body):
    """What a job's reader makes of a window: the window, what it dropped, and the processor time that took (s)."""
    dropped = Counter()
    windows = HostWindows({"h0"}, lambda _, reason, count: dropped.update({reason: count}), {"h0": 0})
    windows.note_names("h0", body, begins=True)
    began_s = time.thread_time()
    window = windows.receive("h0", body)
    return window, dict(dropped), time.thread_time() - began_s


MEMBER = {"rank": 0, "host": "", "nics": []}
IMPOSSIBLE = {
    "the sequence as it was": {"sequence": 1 << 62},
    "a sequence below 0": {"sequence": -(1 << 62)},
    "a sequence of 64 bits": {"sequence": (1 << 64) - 1},
    "no number": {"end_s": math.nan},
    "no end": {"end_s": math.inf},
    "a time before clocks": {"start_s": -1e300},
    "NICs": {"nics": [{"nic": f"h0/{number}", "state": ""} for number in range(100_000)]},
    "processes": {"ranks": [{"job": "j", "rank": 0, "host": "h0", "pid": 1, "state": ""}] * 100_000},
    "names": {"names": {"callers": [(number, ("c", 0)) for number in range(500_000)]}},
    "names of each sort": {
        "names": {sort: [(number, None) for number in range(70_000)] for sort in ("comms", "callers", "sends")}
    },
    "depth": {"names": {"calls": msgspec.Raw(b"\x91" * 100_000 + b"\xc0")}},
    "bytes": {"awaits": b"\xff" * (9 << 20)},
}


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param(fields, id=how, marks=pytest.mark.attack(f"{'' if not at else 'variant: '}{how}"))
        for at, (how, fields) in enumerate(IMPOSSIBLE.items())
    ],
)
def test_what_no_agent_counts_is_dropped_at_once(fields):
    """A window whose numbers, or whose numbers of records, cannot be is counted as unreadable, and costs no time."""
    window, dropped, took_s = received(encoded(**fields))
    assert window is None
    assert dropped == {UNREADABLE: 1}
    assert took_s < AT_ONCE_S


@pytest.mark.attack("variant: a large gap")
def test_a_gap_is_counted_by_arithmetic():
    """However many windows are missing, counting them takes no time."""
    window, dropped, took_s = received(encoded(sequence=1 << 52))
    assert window is not None
    assert dropped == {LOST: (1 << 52) - 1}
    assert took_s < AT_ONCE_S


GARBAGE = {
    "no text": b"\xff\xfe\x00",
    "nothing": b"",
    "half of it": b'{"holder": "x", "judged_s',
    "another type": b"[1, 2]",
    "a number of 5,000 digits": b'{"holder": "x", "job": %s}' % (b"1" * 5000),
    "a time without end": b'{"holder": "x", "judged_s": 1e300}',
    "a count below 0": b'{"holder": "x", "newest": {"h0": -5}}',
    "a holder from tomorrow": json.dumps({"holder": "x", "judged_s": time.time() + 86_400}).encode(),
    "depth": b'{"standing": ' + b"[" * 100_000,
    "msgpack": b"\xc1" * 100,
    "large": b'{"holder": "' + b"x" * (BUS_VALUE.bytes - 1000) + b'"',
}


@needs_nats
@pytest.mark.attack("garbage in lease keys")
def test_garbage_ends_no_detector_and_no_master(scene):
    """Garbage in every stream and bucket: all processes live, it is counted and said once, and takeover works."""
    simulated = SimulatedJobs(scene, {"job0": []})

    async def play():
        running = asyncio.create_task(simulated.run())
        try:
            holder = (await asyncio.wait_for(scene.judging(["job0"]), WITHIN_S))["job0"]
            await write_garbage(scene)
            await asyncio.sleep(1.5)
            assert {each.started.poll() for each in (scene.master, *scene.detectors.values())} == {None}
            assert (await asyncio.wait_for(scene.judging(["job0"]), WITHIN_S))["job0"]
            holder = (await scene.judging(["job0"]))["job0"]
            scene.detectors.pop(int(holder.rpartition("-")[2])).end(signal.SIGKILL)
            while (await asyncio.wait_for(scene.judging(["job0"]), WITHIN_S))["job0"] == holder:
                await asyncio.sleep(0.1)
            return await asyncio.to_thread(scene.health)
        finally:
            running.cancel()
            await asyncio.wait((running,))

    health = asyncio.run(play())
    (left,) = scene.detectors.values()
    assert {each.started.poll() for each in (scene.master, left)} == {None}
    for process, kinds in (
        (scene.master, ("lease", "finding")),
        (left, ("lease", "record of the fabric", "job entry")),
    ):
        said = process.log.read_text()
        for kind in kinds:
            assert said.count(f"as 'unreadable {kind}'") == 1, said
        assert "Traceback" not in said
    # Nothing, in a key, is no lease, and no garbage.
    assert health["left_out"]["unreadable lease"] >= len(GARBAGE) - 1


async def write_garbage(scene):
    """Write it wherever somebody may: keys of leases, findings, traffic, paths, job entries, reports and windows."""
    written = {
        "detector": (
            f"$KV.{S.leases}.job.job0",
            f"$KV.{S.leases}.detector.evil{{}}",
            f"$KV.{S.leases}.job.=FF",
            S.finding("job0"),
            S.shared("traffic", "evil"),
        ),
        "bus-master": (S.shared("paths", "master"), f"$KV.{S.jobs}.evil{{}}", S.report("job0")),
        "h0": (S.window("job0", "h0"), S.window("job0", "h0", "begin"), S.window("job0", "h0", "change")),
    }
    for name, subjects in written.items():
        async with opened(scene.bus(name)) as bus:
            for subject in subjects:
                await bus.client.publish(subject, b"", headers={"KV-Operation": "DEL"})
                for number, body in enumerate(GARBAGE.values()):
                    # A key has only its newest value.
                    await bus.client.publish(subject.replace("{}", str(number)), body)
            await bus.client.flush(5)


@pytest.mark.attack("variant: fuzz of what comes off the bus")
@pytest.mark.parametrize("examples", [1_500, pytest.param(50_000, marks=pytest.mark.nightly)])
def test_whatever_comes_is_decoded_or_left_out(examples):
    """Changed and invented bodies and subjects raise the two errors that a reader expects, and none takes long."""
    draw, slowest_s = random.Random(examples), 0.0
    known = [msgspec.json.encode(lease.HeldLease("x", 3, 5.0, 2.0, {"h0": 5})), encoded(), *GARBAGE.values()]
    known.append(msgspec.msgpack.encode(jobs.JobEntry(SPEC, 1)))
    for _ in range(examples):
        body = bytearray(draw.choice(known)[:4096])
        for _ in range(draw.randrange(4)):
            at = draw.randrange(len(body) + 1)
            body[at : at + draw.randrange(3)] = draw.randbytes(draw.randrange(4))
        for read in readers(bytes(body)):
            began_s = time.thread_time()
            with contextlib.suppress(DecodingError, OverBudgetError):
                read()
            slowest_s = max(slowest_s, time.thread_time() - began_s)
    assert slowest_s < AT_ONCE_S


def readers(body):
    """All that reads bytes of the bus."""
    subject = "c4.c4.job.job0." + body[:40].decode(errors="surrogateescape")
    kinds = [partial(incoming.decoded, kind, body) for kind in KINDS]
    return [*kinds, partial(incoming.window, body), partial(place, subject), partial(received, body)]
