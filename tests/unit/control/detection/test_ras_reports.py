"""What the master makes of reports of NCCL's RAS from many hosts."""

import asyncio
import gzip
import json

from c4bench.control.detection.ras_reports import RasReports


class Fleet:
    """Reports as agents would send them, and what is published of them."""

    def __init__(self):
        self.published, self.kept = [], {}
        self._reports = RasReports(lambda time_s, found: self.published.append((time_s, found)), self.kept.__setitem__)

    def send(self, host, now_s, *comms):
        document = {"nccl_version": "2.30.1", "timestamp": str(now_s), "communicators": list(comms)}
        self.send_bytes(host, now_s, gzip.compress(json.dumps(document).encode()))

    def send_bytes(self, host, now_s, packed):
        asyncio.run(self._reports.ingest(host, packed, now_s))

    def said(self):
        return [(time_s, found.job, str(found.cause), str(found.component)) for time_s, found in self.published]


def comm(name, counts, dead=()):
    ranks = [{"rank": rank, "host": f"{name}{rank}", "pid": 5, "collective_counts": {"AllReduce": count}}
             for rank, count in enumerate(counts) if rank not in dead]  # fmt: skip
    missing = [{"rank": rank, "host": f"{name}{rank}", "pid": 5, "status": {"considered_dead": True}} for rank in dead]
    return {"hash": name, "size": len(counts), "ranks": ranks, "missing_ranks": missing}


def test_a_job_that_does_not_move_is_published_once():
    """A rank that others wait for is named after fifteen seconds in which nobody calls anything, and once only."""
    fleet = Fleet()
    for now_s in range(100, 160, 5):
        fleet.send("h0", now_s, comm("a", (7, 6, 7)))
        fleet.send("h1", now_s + 1, comm("a", (7, 6, 7)))
    assert fleet.said() == [(115, "nccl-a", "not_entered", "rank nccl-a:1")]
    (_, found), *_ = fleet.published
    assert (found.onset_s, found.named_s) == (100, 115)
    assert fleet.kept.keys() == {"h0", "h1"}


def test_a_job_that_moves_is_well():
    """A rank that is late in every report, but calls more each time, is not published."""
    fleet = Fleet()
    for now_s in range(100, 200, 5):
        fleet.send("h0", now_s, comm("a", (now_s, now_s - 1, now_s)))
    assert fleet.said() == []


def test_a_dead_process_is_published_at_once():
    """That a process does not answer RAS is no matter of being late."""
    fleet = Fleet()
    fleet.send("h0", 100, comm("a", (7, 7, 0), dead=(2,)))
    assert fleet.said() == [(100, "nccl-a", "process_ended", "rank nccl-a:2")]


def test_jobs_are_told_apart_by_their_communicators():
    """Reports without a communicator in common are of two jobs; one rank that hangs is blamed on its own job."""
    fleet = Fleet()
    for now_s in range(100, 130, 5):
        fleet.send("h0", now_s, comm("a", (7, 6, 7, 7)), comm("b", (3, 3)))
        fleet.send("h1", now_s, comm("b", (3, 3)), comm("a", (7, 6, 7, 7)))
        fleet.send("h2", now_s, comm("c", (now_s, now_s)))
    assert {job for _, job, *_ in fleet.said()} == {"nccl-a"}


def test_a_report_that_cannot_be_read_is_dropped(caplog):
    """Bytes that are no report are logged with the host, and other reports still count."""
    fleet = Fleet()
    fleet.send_bytes("h9", 99, b"no gzip")
    fleet.send_bytes("h9", 99, gzip.compress(b'{"other": 1}'))
    assert [record.host for record in caplog.records] == ["h9", "h9"]
    fleet.send("h0", 100, comm("a", (7, 7, 0), dead=(2,)))
    assert len(fleet.said()) == 1
