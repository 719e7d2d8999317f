"""When agents send their windows, and when the master evaluates them."""

import asyncio
import socket
import ssl
import time
from collections import Counter

import pytest

from c4bench.agent.agent import Agent
from c4bench.agent.spawner import Started
from c4bench.control.detection.telemetry import TelemetryLoop
from c4bench.model.agent import WINDOWS_WITHIN, AgentConfig

PERIOD_S = 0.1
NEAR_S = 0.008  # less than the tenth of a period between evaluation and the next period
LOOKS = 8


def config(name, folder="/nowhere"):
    return AgentConfig(name, "10.0.0.1", str(folder), rings=str(folder))


class Listener:
    """Stands for the connection to the master and for its detection; notes when it was called."""

    def __init__(self):
        self.at_s = []

    async def note(self, _method, _window):
        self.at_s.append(time.monotonic())

    def note_overload(self, _host):
        raise AssertionError("no window has come")

    def evaluate(self, *_):
        self.at_s.append(time.monotonic())
        return {}

    def doubtful(self):
        return []

    def poll_benign(self):
        return []


async def calls_of(work, listener):
    """When an endless task has called the listener."""
    task = asyncio.create_task(work)
    while len(listener.at_s) < LOOKS:
        await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return listener.at_s


def lateness(moments, phase):
    """How long after its time of the clock the most punctual call came; other work may delay the rest."""
    return min((moment - phase * PERIOD_S) % PERIOD_S for moment in moments)


@pytest.mark.parametrize("started_after_s", [0.0, 0.04])
def test_a_host_sends_at_its_own_time_of_the_clock(tmp_path, started_after_s):
    """An agent sends windows at the same part of every period of the clock, whenever it has started."""
    time.sleep(-time.monotonic() % PERIOD_S + started_after_s)
    ours, theirs = socket.socketpair()
    agent, listener = Agent(config("h3", tmp_path), ssl.create_default_context(), ours), Listener()
    agent._master = listener
    agent._ranks.started(Started("job", 0, 1))
    moments = asyncio.run(calls_of(agent._ship_windows(), listener))
    ours.close()
    theirs.close()
    assert lateness(moments, config("h3").window_phase) < NEAR_S


@pytest.mark.parametrize("started_after_s", [0.0, 0.04])
def test_evaluation_follows_all_windows_of_a_period(started_after_s):
    """The master evaluates at nine tenths of a period of the clock, when no window arrives."""
    time.sleep(-time.monotonic() % PERIOD_S + started_after_s)
    listener = Listener()
    telemetry = TelemetryLoop({}, None, Listener(), listener, None, None, None)
    assert lateness(asyncio.run(calls_of(telemetry.run(set), listener)), 0.9) < NEAR_S


@pytest.mark.parametrize("named", ["h{}", "gpu{:04}", "node-{}.rack7.example"])
def test_a_fleet_is_spread_over_the_period(named):
    """Of 1000 hosts no tenth of the sending time has more than twice its share, and no host sends after that time."""
    phases = [config(named.format(index)).window_phase for index in range(1000)]
    tenths = Counter(int(10 * phase / WINDOWS_WITHIN) for phase in phases)
    assert tenths.keys() == set(range(10))
    assert max(tenths.values()) < 200
