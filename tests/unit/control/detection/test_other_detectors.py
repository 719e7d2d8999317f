"""A detector of others in the master gets what the recording has, and cannot stop it."""

import asyncio

import pytest

from c4bench.c4d import detectors, offline
from c4bench.control.detection.detection import LocalDetection
from c4bench.control.jobs.job import Job
from c4bench.errors import UsageError
from c4bench.model.diagnosis import Component, Diagnosis, Syndrome
from c4bench.model.fabric import Host, Nic
from c4bench.model.recording import Evaluated, LinkRates
from c4bench.workload.jobs import job

HOSTS = tuple(Host(f"h{n}", "", (Nic(f"h{n}", 0, "", "", f"10.0.0.{n}", 1e9),)) for n in range(2))
NAMED = Diagnosis("train", Syndrome.COMMUNICATION_HANG, Component("rank", "train:1"), 1.0, 2.0, 2.0, 0.5, (), "")


class Naive:
    """Keeps what it gets, and names one rank at the second evaluation."""

    def __init__(self):
        self.records = []

    def ingest(self, record):
        """As the protocol says."""
        self.records.append(record)
        return [NAMED] if record == Evaluated(2.0) else []


@pytest.fixture
def judged(monkeypatch):
    """A function that follows one job by the detector that a class makes: detection, job, and the detector."""

    def follow(kind):
        made = []
        monkeypatch.setitem(detectors.DETECTORS._loaded, "naive", lambda: made.append(kind()) or made[-1])
        detection, followed = LocalDetection(judge=detectors.judge("naive")), Job(job("train", "steps", HOSTS, seed=1))
        detection.follow(followed, 1.0)
        return detection, followed, made[-1]

    return follow


def test_it_gets_the_records_of_the_recording(judged):
    """What is known about the fabric too, in the same order; the recording judged again gives the same."""
    detection, followed, naive = judged(Naive)
    detection.ingest_fabric(LinkRates(1.0, {"10.1.0.1": 1e9}))
    assert detection.evaluate(1.5) == {}
    assert detection.evaluate(2.0) == {"train": [NAMED]}
    recorded = list(followed.recording)
    assert naive.records == recorded
    assert len(recorded) == 5  # what is known already, the new rates, and two evaluations
    assert offline.detect(recorded, Naive()) == [NAMED]
    assert (detection.doubts("train"), detection.cells("train"), detection.intervals_s("train")) == (None, {}, ())
    assert detection.poll_benign() == []


def test_what_has_no_ingest_is_refused(judged):
    """A class whose objects are no detectors is an error of whoever names it."""
    with pytest.raises(UsageError, match="detector 'naive' has no method `ingest"):
        judged(dict)


def test_its_errors_are_reported_and_stop_nothing(judged):
    """An error is a report to the running loop, once where it stays the same; nothing is named."""
    reports = []

    class Broken(Naive):
        def ingest(self, record):
            raise ValueError(f"no idea of {len([record])}")

    async def evaluate():
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reports.append(context["message"]))
        detection, _, _ = judged(Broken)
        return detection.evaluate(1.5), detection.evaluate(2.0)

    assert asyncio.run(evaluate()) == ({}, {})
    (report,) = reports
    assert report.endswith("Broken did not ingest a record: ValueError: no idea of 1")
