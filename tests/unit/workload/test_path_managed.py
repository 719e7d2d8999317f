"""Communicators that C4P moves and weighs while they run, over the loopback transport."""

import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from c4bench.collective.endpoint_context import RankProcess
from c4bench.collective.options import Options
from c4bench.collective.recorder import Recorder
from c4bench.errors import UnhealthyError
from c4bench.model.fabric import Nic
from c4bench.model.qp_address import QpAddress
from c4bench.model.telemetry import Member
from c4bench.verbs.errors import VerbsError
from c4bench.wire.messages import Guidance
from c4bench.workload.context import PathManagedCommunicator
from tools.local_rendezvous import LocalRendezvous
from tools.loopback import LoopbackPort, Network

RANKS = 2


class Line:
    """A line to the agent on which the test is the master."""

    def __init__(self, master):
        self._master = master
        self._ours, self._theirs = socket.socketpair()

    def ask(self, body):
        self._master.questions.append(body)
        self._master.open.append(self)

    def say(self, steering):
        self._messages = steering
        self._theirs.send(b"x")

    def answer(self, _):
        self._ours.recv(1)
        if self._messages is None:
            raise UnhealthyError("the agent closed the connection")
        return self._messages

    def fileno(self):
        return self._ours.fileno()

    def close(self):
        if self in self._master.open:
            self._master.open.remove(self)
        self._ours.close()
        self._theirs.close()


class Master(LocalRendezvous):
    """A control plane for one rank's thread: gives ports, keeps questions, answers when told to."""

    job = "job"

    def __init__(self, shared):
        super().__init__()
        self._shared = shared
        self.routed, self.qps, self.questions, self.open = {}, {}, [], []
        self.exchange, self.fail, self.failure_signal = shared.exchange, shared.fail, shared.failure_signal

    def route(self, flows):
        ports = [0xC100 + index for index in range(len(flows))]
        self.routed |= {flow.id: (flow, port) for flow, port in zip(flows, ports, strict=True)}
        return ports

    def choose_qps(self, _):
        return 3

    def release(self, flows):
        for flow in flows:
            self.routed.pop(flow)

    def open_link(self):
        return Line(self)


class Job:
    def __init__(self, folder, **options):
        shared, network = LocalRendezvous(), Network()
        self.masters = [Master(shared) for _ in range(RANKS)]
        members = [Member(rank, f"h{rank}", (f"h{rank}/0",)) for rank in range(RANKS)]
        self.pool = ThreadPoolExecutor(RANKS)

        def join(rank):
            nics = (Nic(f"h{rank}", 0, "dev", "net", "::1", 1e10),)
            recorder = Recorder(folder / f"{rank}.ring", "job", rank)
            process = RankProcess("job", nics, self.masters[rank], recorder, lambda _: LoopbackPort(network))
            made = PathManagedCommunicator(
                "job:data", rank, members, process, Options(paths="planned", timeout_s=20.0, **options)
            )
            made.follow(self.masters[rank])
            return made

        self.comms = list(self.pool.map(join, range(RANKS)))

    def all_reduce(self):
        """One operation on all ranks; whether every element is right."""
        arrays = [np.full(3000, rank + 1, np.int64) for rank in range(RANKS)]
        list(self.pool.map(lambda comm, array: comm.all_reduce(array), self.comms, arrays))
        return all((array == RANKS * (RANKS + 1) // 2).all() for array in arrays)

    def ports(self, rank):
        return [rail.ends.data.source_port for rail in self.comms[rank]._group.sender(1 - rank, 0).own]

    def close(self):
        for comm in self.comms:
            comm.close()
        self.pool.shutdown()


@pytest.fixture
def made(tmp_path):
    jobs = []

    def make(**options):
        jobs.append(Job(tmp_path, **options))
        return jobs[-1]

    yield make
    for job in jobs:
        job.close()


def flows(master):
    """The flows that the last question named, by their QPs."""
    question = master.questions[-1]
    return [flow.id for flow in sorted(question.flows, key=QpAddress.parse)]


def test_a_rank_moves_between_operations(made):
    """Guidance is applied before the next operation, sums stay exact, and the next request reports it."""
    job = made(qps=2)
    assert job.all_reduce()
    first, second = flows(job.masters[0])
    before = job.ports(0)
    job.masters[0].open[0].say(Guidance({second: 0xC555}, {first: 0.25, second: 0.75}))
    assert job.ports(0) == before
    assert job.all_reduce()
    assert job.ports(0) == [before[0], 0xC555]
    question = job.masters[0].questions[-1]
    assert dict(zip([flow.id for flow in question.flows], question.ports, strict=True))[second] == 0xC555
    assert sorted(question.weights) == [0.25, 0.75]
    assert job.all_reduce()


def test_a_device_that_refuses_is_reported(made, monkeypatch):
    """If a move is refused the connection stays, the job continues, and the next request reports flow and reason."""
    job = made()
    assert job.all_reduce()
    (only,) = flows(job.masters[0])

    def refuse(*_):
        raise VerbsError("it has no knob", device="dev", qp=1)

    monkeypatch.setattr(job.comms[0]._group.sender(1, 0), "move", refuse)
    job.masters[0].open[0].say(Guidance({only: 0xC555}))
    assert job.all_reduce()
    assert "it has no knob" in job.masters[0].questions[-1].refused[only]


def test_without_a_master_the_job_goes_on(made):
    """After a broken link the next operation asks for guidance again."""
    job = made()
    assert job.all_reduce()
    job.masters[0].open[0].say(None)
    assert job.all_reduce()
    asked = len(job.masters[0].questions)
    assert job.all_reduce()
    assert len(job.masters[0].questions) == asked + 1


def test_without_an_agent_the_job_goes_on(made, monkeypatch):
    """An operation runs even if guidance cannot be requested."""
    job = made()

    def refuse():
        raise ConnectionRefusedError

    monkeypatch.setattr(job.masters[0], "open_link", refuse)
    assert job.all_reduce()
    assert not job.masters[0].questions


def test_split_and_messages_are_guided_too(made):
    """A communicator made by split requests its own guidance; connections of send and recv are included."""
    job = made()
    halves = list(job.pool.map(lambda comm: comm.split(0), job.comms))
    arrays = [np.full(10, rank, np.int64) for rank in range(RANKS)]
    list(job.pool.map(lambda comm, array: comm.all_reduce(array), halves, arrays))
    assert {flow.id.split("/")[1] for flow in job.masters[0].questions[-1].flows} == {halves[0].name.split("/")[0]}
    sender = threading.Thread(target=job.comms[0].send, args=(np.arange(10), 1))
    sender.start()
    job.comms[1].recv(np.zeros(10, np.int64), 0)
    sender.join()
    job.comms[0].apply_guidance()
    assert any("/0>1/" in flow for flow in flows(job.masters[0]))
    for half in halves:
        half.close()


def test_weights_follow_the_number_of_qps_that_c4p_has_chosen(made):
    """A rank reports equal weights of as many QPs as it was given, and applies new ones for all of them."""
    job = made(qps=0)
    assert job.all_reduce()
    question = job.masters[0].questions[-1]
    assert question.weights == (1 / 3,) * 3
    names = flows(job.masters[0])
    job.masters[0].open[-1].say(Guidance(weights=dict(zip(names, (0.5, 0.5, 0.0), strict=True))))
    assert job.all_reduce()
    assert list(job.comms[0]._group.sender(1, 0).weights.values()) == [0.5, 0.5, 0.0]
