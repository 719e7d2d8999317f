"""The master's state on a bus: what a folder keeps, the bus keeps, and only for the master that leads."""

import asyncio
import time

import pytest
from bus_scene import SUBJECTS, BusScene, needs_nats

from c4bench.bus.connection import opened
from c4bench.bus.leader import Leader
from c4bench.bus.lease import DETECTOR, GONE_AFTER_S, Heartbeat, HeldLease, Lease, Renewals, heartbeat_key
from c4bench.bus.reader import StreamReader
from c4bench.bus.server import StreamLimits, make_streams
from c4bench.control.state.store import FinishedExchange, StateFolder, Store
from c4bench.errors import UnhealthyError
from c4bench.model.event import AgentBack
from c4bench.wire.messages import Exchanged
from c4bench.wire.trust import Role

pytestmark = needs_nats


@pytest.fixture
def scene(tmp_path):
    """nats-server with the streams that a master makes, without a master."""

    async def prepare():
        async with opened(scene.bus()) as bus:
            await make_streams(bus, StreamLimits())

    with BusScene(tmp_path) as scene:
        asyncio.run(prepare())
        yield scene


@pytest.fixture
def lead(scene):
    """Have a master of this name lead."""
    leaders = []

    def begin(name):
        leaders.append(Leader(scene.bus(Role.BUS_LEADER), name, lambda _: None))
        leaders[-1].lead()
        return leaders[-1]

    yield begin
    for leader in leaders:
        leader.close()


def use(files):
    """Write and change files and logs in every way."""
    files.replace("state.json", b"1")
    files.replace("state.json", b"2")
    files.replace("evidence/h0.x.ras", b"\x00" * 3)
    assert files.append("jobs/a.log", b"one") == 4
    assert files.append("jobs/a.log", b"two") == 8
    assert files.append("jobs/b~1.log", b"x") == 2
    assert files.rewrite("jobs/a.log", [b"2", b"3"]) == 4
    assert files.append("jobs/a.log", b"4") == 6
    files.append("events.jsonl", b"e1")
    files.rotate("events.jsonl", "events.older.jsonl")
    files.append("events.jsonl", b"e2")
    files.rotate("events.jsonl", "events.older.jsonl")
    assert files.append("events.jsonl", b"e3") == 3
    files.remove("jobs/b~1.log")
    files.remove("jobs/none.log")


def seen(files):
    """All that can be read."""
    logs = ("jobs/a.log", "jobs/b~1.log", "events.jsonl", "events.older.jsonl", "none")
    kept = ("state.json", "evidence/h0.x.ras", "none")
    return {name: files.lines(name) for name in logs}, {name: files.read(name) for name in kept}


def test_the_next_master_reads_what_it_would_from_a_folder(lead, tmp_path):
    """Files and logs are the same to the next master, wherever they are kept."""
    first, folder = lead("first"), StateFolder(tmp_path / "folder")
    use(folder)
    use(first)
    first.close()
    folder.close()
    assert seen(lead("second")) == seen(StateFolder(tmp_path / "folder"))


def test_a_master_that_leads_no_more_writes_nothing(scene, lead):
    """When another one has begun to lead, a write is refused, nothing of it is kept, and the reason is said once."""
    said = []
    former = Leader(scene.bus(Role.BUS_LEADER), "former", said.append)
    former.lead()
    store = Store(former)
    store.append("j", FinishedExchange("c", "kept", Exchanged((b"",))))
    # As if it stood still: it renews nothing, and its lease ends.
    for task in asyncio.all_tasks(former._loop):
        if task.get_coro().__name__ == "_keep":
            former._loop.call_soon_threadsafe(task.cancel)
    later = lead("later")
    with pytest.raises(UnhealthyError, match="another master leads now"):
        store.append("j", FinishedExchange("c", "refused", Exchanged((b"",))))
    with pytest.raises(UnhealthyError, match="another master leads now"):
        store.log(AgentBack(1.0, "h0", 0.5))
    former.close()
    assert said == ["another master leads now, so this one ends"]
    assert [entry.key for entry in Store(later).entries("j")] == ["kept"]
    assert Store(later).events() == []


def test_what_is_too_large_is_refused_or_left_out(lead):
    """A file that the bus cannot take is an error in one line, or not saved where it can be learnt again."""
    leader, large = lead("first"), b"x" * (8 << 20) + b"x"
    leader.replace("paths.json", b"1", durable=False)
    leader.replace("paths.json", large, durable=False)
    with pytest.raises(UnhealthyError, match=r"state.json has 8388609 bytes"):
        leader.replace("state.json", large)
    assert (leader.read("paths.json"), leader.read("state.json"), leader.lost) == (b"1", None, "")


def test_a_lease_is_taken_by_one_and_only_after_it_has_ended(scene):
    """Of two that try at once one gets a free lease; one that was renewed since it was seen to end is not taken."""

    async def play():
        async with opened(scene.bus("detector")) as bus:
            unseen = Renewals(0.2)
            first, second = Lease(bus, "job.x"), Lease(bus, "job.x")
            tried = await asyncio.gather(
                *(
                    lease.acquire(unseen, lambda _, name=name: HeldLease(name))
                    for lease, name in ((first, "a"), (second, "b"))
                )
            )
            got, other = (first, second) if tried[0] else (second, first)
            holder = next(held for held in tried if held).holder
            stale = Renewals(0.2)
            stale.renewed("job.x", got._revision, HeldLease(holder), 0.0)
            assert await got.write(HeldLease(holder))
            refused = await other.acquire(stale, lambda _: HeldLease("late"))
            stale.renewed("job.x", got._revision, HeldLease(holder), 0.0)
            taken = await other.acquire(stale, lambda _: HeldLease("late"))
            return tried, refused, taken, await got.write(HeldLease(holder)), await got.look()

    tried, refused, taken, renewed, last = asyncio.run(play())
    assert sum(held is not None for held in tried) == 1
    assert refused is None
    assert taken == last == HeldLease("late")
    assert not renewed


def test_a_detector_is_there_while_its_loop_turns(scene):
    """A heartbeat is written several times before others take its detector to be gone, and only while its loop turns.

    It goes on when the loop does.
    """

    async def play():
        async with opened(scene.bus("detector")) as bus:
            keys = StreamReader(bus, f"KV_{SUBJECTS.leases}", f"$KV.{SUBJECTS.leases}.{DETECTOR}>")

            async def written(within_s, *, turning):
                found, until_s = 0, time.monotonic() + within_s
                while time.monotonic() < until_s:
                    if turning:
                        heartbeat.turn(HeldLease("d.1", dropped={"h0": {"late": 1}}))
                    found += len(await keys.read(0.02))
                return found

            with Heartbeat(bus.another(), "d.1") as heartbeat:
                while not await written(0.1, turning=True):
                    pass
                beats = await written(2.0, turning=True)
                await written(GONE_AFTER_S + 0.5, turning=False)
                stuck = await written(1.0, turning=False)
                while not await written(0.1, turning=True):
                    pass
            said = await Lease(bus, heartbeat_key("d.1")).look()
            return beats, stuck, said

    beats, stuck, said = asyncio.run(play())
    assert beats > 2 * 2.0 / GONE_AFTER_S
    assert stuck == 0
    assert said == HeldLease("d.1", dropped={"h0": {"late": 1}})


def test_a_reader_catches_up_while_keys_are_overwritten(scene):
    """Of many who begin to read keys that others write all the time, each soon knows that it has read all."""
    stream, every = f"KV_{SUBJECTS.leases}", f"$KV.{SUBJECTS.leases}.>"

    async def play():
        async with opened(scene.bus("detector")) as bus:

            async def write():
                while True:
                    for number in range(20):
                        await bus.client.publish(f"$KV.{SUBJECTS.leases}.detector.d{number}", b"{}")
                    await asyncio.sleep(0.001)

            async def catch_up():
                reader, until_s = StreamReader(bus, stream, every), time.monotonic() + 10.0
                while not reader.caught_up and time.monotonic() < until_s:
                    await reader.read(0.1)
                await reader.close()
                return reader.caught_up

            writing = asyncio.create_task(write())
            caught_up = [await catch_up() for _ in range(100)]
            writing.cancel()
        return caught_up

    assert all(asyncio.run(play()))
