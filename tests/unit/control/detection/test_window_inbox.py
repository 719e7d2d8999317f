"""A master that falls behind ingests each host's newest window, and says how many it left out."""

import asyncio
from collections import Counter

import pytest

from c4bench.control.agents import AgentLiveness
from c4bench.control.detection.telemetry import WindowInbox
from tools.sim.windows import window_of

HOSTS = ("h0", "h1", "h2")


def window(host, sequence):
    return window_of(host, sequence, 0.1 * sequence, 0.1 * sequence + 0.1)


def served(work, ingest, replaced=lambda _: None):
    """Run `work(inbox)` beside an inbox."""

    async def run():
        inbox = WindowInbox(ingest, replaced)
        running = asyncio.create_task(inbox.run())
        try:
            return await asyncio.wait_for(work(inbox), 10.0)
        finally:
            running.cancel()

    return asyncio.run(run())


def test_windows_are_ingested_at_once_and_in_order():
    """A master with time to spare ingests every window, in order of arrival."""
    seen, left_out = [], []

    async def ingest(one):
        seen.append((one.host, one.sequence))

    async def work(inbox):
        for sequence in range(3):
            for host in HOSTS:
                inbox.put(window(host, sequence))
                await asyncio.sleep(0)
                await asyncio.sleep(0)

    served(work, ingest, left_out.append)
    assert seen == [(host, sequence) for sequence in range(3) for host in HOSTS]
    assert not left_out


def test_the_newest_window_of_each_host_wins_and_the_others_are_counted():
    """Of a hundred windows of each host that come meanwhile, the last is ingested next, and 99 are dropped."""
    seen, replaced = [], Counter()
    busy, free = asyncio.Event(), asyncio.Event()

    async def ingest(one):
        busy.set()
        await free.wait()
        seen.append((one.host, one.sequence))

    async def work(inbox):
        inbox.put(window("h0", 0))
        await busy.wait()
        for sequence in range(1, 101):
            for host in HOSTS:
                inbox.put(window(host, sequence))
        free.set()
        while len(seen) < 4:
            await asyncio.sleep(0)

    served(work, ingest, lambda host: replaced.update([host]))
    assert seen == [("h0", 0), ("h0", 100), ("h1", 100), ("h2", 100)]
    assert replaced == dict.fromkeys(HOSTS, 99)


def test_others_have_their_turn_while_windows_wait(monkeypatch):
    """Connections and evaluation are served between windows, however many wait."""
    monkeypatch.setattr("c4bench.control.detection.telemetry._TURN_S", 0.0)
    seen = []

    async def ingest(one):
        seen.append(one.host)

    async def work(inbox):
        for host in HOSTS:
            inbox.put(window(host, 0))
        at_turn = []
        while len(seen) < len(HOSTS):
            await asyncio.sleep(0)
            at_turn.append(len(seen))
        return at_turn

    assert served(work, ingest)[-3:] == [1, 2, 3]


def test_a_window_that_cannot_be_ingested_holds_up_no_other(caplog):
    """A fault is reported with its host, and the next window is ingested."""
    seen = []

    async def ingest(one):
        if one.host == "h0":
            raise ZeroDivisionError("a fault of ours")
        seen.append(one.host)

    async def work(inbox):
        for host in HOSTS:
            inbox.put(window(host, 0))
        while len(seen) < 2:
            await asyncio.sleep(0)

    served(work, ingest)
    assert seen == ["h1", "h2"]
    assert "a window of h0 was not ingested: ZeroDivisionError: a fault of ours" in caplog.text


@pytest.mark.parametrize("late_s", [0.0, 7.0])
def test_a_late_master_calls_nobody_missing_for_it(late_s):
    """An agent that was lost has the whole grace time to reconnect in which the master could accept its connection."""
    liveness = AgentLiveness((), 0.0, 5.0)
    liveness.lost("h1", 10.0)
    liveness.extend(late_s)
    assert [event.host for event in liveness.evaluate(15.0 + late_s - 0.1, ())] == []
    assert [event.host for event in liveness.evaluate(15.0 + late_s, ())] == ["h1"]
