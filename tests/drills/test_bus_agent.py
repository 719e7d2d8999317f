"""A real agent with a bus: its windows go there, and the master gets those that it needs."""

import asyncio
import os
import signal
import time
from functools import partial

import pytest
from bus_scene import SUBJECTS, BusScene, needs_nats

from c4bench.agent.agent import Agent
from c4bench.agent.spawner import start as start_spawner
from c4bench.bus.agent_windows import BusWindows
from c4bench.bus.connection import Bus, opened
from c4bench.bus.reader import StreamReader
from c4bench.control.client import dial
from c4bench.model.agent import AgentConfig
from c4bench.model.telemetry import Member
from c4bench.wire.messages import JobSpec, LaunchJob, QueryResults
from c4bench.wire.window_codec import from_message

pytestmark = needs_nats
LASTS_S = 3.0


def rank_main(_job, _rank):
    """A rank that does nothing until it is killed."""
    time.sleep(60)
    return 0


@pytest.fixture
def scene(tmp_path):
    """nats-server and a master."""
    with BusScene(tmp_path) as scene:
        scene.start_master()
        yield scene


def config(scene):
    """The agent's configuration, as deployment would write it."""
    home = scene.folder / "h0"
    home.mkdir()
    for target, source in (("ca.pem", "ca.pem"), ("cert.pem", "h0.pem"), ("key.pem", "h0.key")):
        (home / target).write_bytes((scene.trust / source).read_bytes())
    places = {"state": str(home), "rings": str(home / "rings")}
    return AgentConfig("h0", "127.0.0.1", str(home), port=scene.port, bus=scene.bus_address, **places)


def test_an_agent_sends_all_windows_to_the_bus_and_few_to_the_master(scene):
    """Each window is on the bus in order; the master gets one in ten, and at once the one that shows a rank's end."""
    settings = config(scene)
    spawner = start_spawner(lambda: partial(rank_main))
    tls = scene.tls("h0")
    agent = Agent(settings, tls, spawner, BusWindows(Bus(settings.bus, tls, "h0", SUBJECTS)))

    async def play():
        serving = asyncio.create_task(agent.run())
        try:
            while "h0" not in (await asyncio.to_thread(scene.health))["agents"]:
                await asyncio.sleep(0.1)
            async with dial(scene.address, scene.trust, "operator") as master:
                await master.start(LaunchJob(JobSpec("j", "none", (Member(0, "h0", ()),), ())))
                await asyncio.sleep(LASTS_S)
                received = (await asyncio.to_thread(scene.health))["agents"]["h0"]["windows"]
                os.kill(agent._ranks._ranks[0].pid, signal.SIGKILL)
                with pytest.raises(Exception, match="killed on h0"):
                    await master.ask(QueryResults("j", "none", 10.0))
            async with opened(scene.bus()) as bus:
                sent = await StreamReader(bus, SUBJECTS.telemetry, SUBJECTS.job("j")).read_all()
        finally:
            serving.cancel()
            await asyncio.wait((serving,))
        return received, sent

    try:
        received, sent = asyncio.run(asyncio.wait_for(play(), 60))
    finally:
        spawner.close()
    windows = [from_message(stored.body) for stored in sent]
    numbers = [window.sequence for window in windows]
    assert sent[0].subject.endswith(".begin")
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert 1 <= received <= len(windows) / 4
