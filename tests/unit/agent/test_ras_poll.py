"""The agent asks NCCL's RAS, and what it answers reaches the master as a diagnosis."""

import asyncio
import datetime
import gzip
import json
import logging
import socket
import threading
import time

import msgspec
import pytest
from local_master import Scene

from c4bench.agent import config as agent_config
from c4bench.agent.agent import Agent
from c4bench.agent.ras_poll import RasPoller
from c4bench.deploy import authority
from c4bench.errors import UsageError
from c4bench.model.event import Event


class Ras:
    """A RAS port on this machine, which answers with `report`."""

    def __init__(self):
        self.report = {}
        self.asked = 0
        self._server = socket.create_server(("127.0.0.1", 0))
        self.place = f"127.0.0.1:{self._server.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            with connection:
                connection.recv(100)
                self.asked += 1
                stamped = self.report | {"timestamp": f"{time.time():.3f}", "ras": {"collection_time_sec": time.time()}}
                connection.sendall(b"OK\n" + json.dumps(stamped).encode())

    def close(self):
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()


@pytest.fixture
def ras():
    made = Ras()
    yield made
    made.close()


def report(counts, dead=()):
    ranks = [{"rank": rank, "host": f"n{rank}", "pid": 5, "collective_counts": {"AllReduce": count}}
             for rank, count in enumerate(counts) if rank not in dead]  # fmt: skip
    missing = [{"rank": rank, "host": f"n{rank}", "pid": 5, "status": {"considered_dead": True}} for rank in dead]
    comm = {"hash": "0xabc", "size": len(counts), "ranks": ranks, "missing_ranks": missing}
    return {"nccl_version": "2.30.1", "communicators": [comm]}


def polled(ras, *reports):
    """What a poller sends while RAS gives these reports, one at a time."""
    sent = []

    async def send(report):
        sent.append(json.loads(gzip.decompress(report.packed)))

    async def play():
        poller = RasPoller(ras.place, 60.0, send)
        for one in reports:
            ras.report = one
            await poller.poll()

    asyncio.run(play())
    return [sum(rank["collective_counts"]["AllReduce"] for rank in one["communicators"][0]["ranks"]) for one in sent]


def test_a_report_that_says_nothing_new_is_sent_seldom(ras):
    """Reports that differ in their times only are sent once, and again after two more; a new one at once."""
    first, second = report((3, 3)), report((4, 3))
    assert polled(ras, first, first, first, first, second) == [6, 6, 7]
    assert ras.asked == 5


def test_that_nobody_listens_is_normal(ras, caplog):
    """A refused connection is logged once, and nothing is sent."""
    caplog.set_level(logging.INFO)
    with socket.create_server(("127.0.0.1", 0)) as free:
        ras.place = f"127.0.0.1:{free.getsockname()[1]}"
    assert polled(ras, {}, {}, {}) == []
    assert [record.message for record in caplog.records if "RAS" in record.message and "nobody" in record.message] == [
        f"NCCL RAS on {ras.place}: nobody listens; no NCCL process with RAS runs there"
    ]


@pytest.mark.parametrize("line", ["ras: ':28028'", "ras: 'h:x'", "ras: 'h:99999'", "ras_every_s: 0.1"])
def test_a_wrong_place_is_refused(tmp_path, line):
    """A configuration that cannot work is refused with its file and key, before the agent starts."""
    path = tmp_path / "agent.yml"
    path.write_text(f"name: h0\nmaster: m\ntrust: t\n{line}\n")
    with pytest.raises(UsageError, match=f"{path}: {line.partition(':')[0]}: "):
        agent_config.load(path)


def test_what_ras_reports_reaches_the_master(ras, tmp_path):
    """A process that RAS considers dead is published by the master as an event, and the report is kept for `detect`."""
    trust = tmp_path / "trust"
    authority.establish(trust, ["h0"], datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1))
    scene = Scene(trust, tmp_path)
    ras.report = report((5, 5, 0), dead=(2,))
    agent, far_end = socket.socketpair()
    events = tmp_path / "state/events.jsonl"

    async def play():
        config = msgspec.structs.replace(scene.config("h0"), ras=ras.place, ras_every_s=0.2)
        serving = asyncio.create_task(Agent(config, scene.tls("h0"), agent).run())
        async with asyncio.timeout(20):
            while not (events.exists() and b"process_ended" in events.read_bytes()):
                await asyncio.sleep(0.1)
        serving.cancel()

    try:
        with agent, far_end:
            asyncio.run(play())
    finally:
        scene.stop()
    (found,) = [event.diagnosis for event in map(msgspec.json.Decoder(Event).decode, events.read_bytes().splitlines())
                if type(event).__name__ == "Diagnosed"]  # fmt: skip
    assert (found.job, str(found.component)) == ("nccl-0xabc", "rank nccl-0xabc:2")
    assert json.loads((tmp_path / "state/evidence/h0.ras").read_bytes())["communicators"][0]["hash"] == "0xabc"
