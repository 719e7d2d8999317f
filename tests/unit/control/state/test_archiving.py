"""The master's archive is written off the event loop, and has what its detectors ingested and found."""

import asyncio
from datetime import UTC, datetime

import pytest

from c4bench.c4d.offline import detect
from c4bench.control.detection.detection import LocalDetection
from c4bench.control.jobs.job import Job
from c4bench.control.state.archiving import Archiving
from c4bench.model.step import StepOp
from c4bench.model.telemetry import Member
from c4bench.record.archive import Archive, Bounds, read_archive
from c4bench.wire.messages import JobSpec
from tools.sim.job import simulate
from tools.sim.model import SimFault, SimFaultKind, SimJob

RING = (StepOp("all_reduce", 4 << 20, 0.02), StepOp("all_to_all", 4 << 20, 0.0))
FAULT = SimFault(SimFaultKind.NIC_RATE, 2, 3.0, factor=0.25, side="rx")
JOB = JobSpec("job", "", tuple(Member(rank, f"h{rank}", (f"h{rank}/0",)) for rank in range(5)), ())


def ingested(detection, duration_s=5.0):
    """What a detection finds that follows a job with a slow receiver."""
    detection.follow(Job(JOB), 0.0)
    found = []
    for tick in simulate(SimJob(5, RING, seed=8), [FAULT], duration_s):
        for window in tick.windows:
            detection.ingest("job", window)
        found += detection.evaluate(tick.time_s).get("job", [])
    return found


@pytest.fixture
def archiving(tmp_path):
    return Archiving(Archive(tmp_path, Bounds(1 << 30, 30.0)))


def run(archiving, for_s=0.05):
    """Let it run for so long, until it is cancelled as when a master ends."""

    async def scene():
        running = asyncio.create_task(archiving.run())
        await asyncio.sleep(for_s)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(scene())


def test_a_master_that_ends_leaves_all_in_its_archive(tmp_path, archiving):
    """The archive gives the findings that the live detector published, and has them besides."""
    found = ingested(LocalDetection(archiving))
    assert list(tmp_path.iterdir()) == []
    run(archiving)
    ((attempt, _, records),), torn = read_archive(tmp_path)
    assert (attempt, torn) == ("job", 0)
    assert detect(records) == found != []
    assert list(tmp_path.glob("findings/day=*/*.parquet"))


def test_what_waits_is_written_beside_the_event_loop(tmp_path, archiving, monkeypatch):
    """Once enough waits, files come while the master goes on; what comes later is in the next ones."""
    monkeypatch.setattr("c4bench.control.state.archiving._FULL_BYTES", 1000)
    monkeypatch.setattr("c4bench.control.state.archiving._LOOK_S", 0.01)
    ingested(LocalDetection(archiving), 1.0)

    async def scene():
        running = asyncio.create_task(archiving.run())
        while not list(tmp_path.glob("records/day=*/*.parquet")):
            await asyncio.sleep(0.01)
        ingested(LocalDetection(archiving), 1.0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(scene())
    assert len(list(tmp_path.glob("records/day=*/*.parquet"))) == 2


def test_what_cannot_be_written_waits_within_bounds(tmp_path, archiving, monkeypatch, caplog):
    """While the disk refuses, records wait, up to a bound; later ones are counted. Then all that waited is written."""
    monkeypatch.setattr("c4bench.control.state.archiving._FULL_BYTES", 1000)
    monkeypatch.setattr("c4bench.control.state.archiving._AT_MOST_BYTES", 200_000)
    monkeypatch.setattr("c4bench.control.state.archiving._LOOK_S", 0.01)
    (tmp_path / "operations").write_bytes(b"")
    ingested(LocalDetection(archiving), 2.0)

    async def scene():
        running = asyncio.create_task(archiving.run())
        while "the archive cannot be written" not in caplog.text:
            await asyncio.sleep(0.01)
        ingested(LocalDetection(archiving), 2.0)
        assert archiving.dropped
        (tmp_path / "operations").unlink()
        while not list(tmp_path.glob("records/day=*/*.parquet")):
            await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(scene())
    ((_, _, records),), _ = read_archive(tmp_path)
    assert records[2].end_s == pytest.approx(0.1)
    day = datetime.now(UTC).date()
    assert {path.name for path in (tmp_path / "records").iterdir()} <= {f"day={day}"}


def test_an_archive_that_can_never_be_written_holds_no_more_for_it(archiving, tmp_path, monkeypatch):
    """A week of records and a full disk: what waits stays below its bound."""
    monkeypatch.setattr("c4bench.control.state.archiving._AT_MOST_BYTES", 300_000)
    (tmp_path / "operations").write_bytes(b"")
    window = next(iter(simulate(SimJob(5, RING, seed=8), [], 0.2))).windows[0]
    for _ in range(7 * 24 * 60):
        archiving.add("job", 0.0, window)
    assert archiving._waiting.size_bytes < 310_000
    assert archiving.dropped + len(archiving._waiting.entries) == 7 * 24 * 60
