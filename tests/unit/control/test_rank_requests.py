"""Which part of the master gets a request of a rank, and what C4D learns from it."""

import asyncio
import time
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from c4bench.control.authorisation import Authorisation
from c4bench.control.jobs.job import Job
from c4bench.control.jobs.rendezvous import Meetings, RendezvousService
from c4bench.control.sessions import RankRequests
from c4bench.errors import C4Error, UnhealthyError
from c4bench.model.diagnosis import Component, NetworkLoss
from c4bench.model.fabric import Flow, Nic
from c4bench.model.recording import FailureReported, LossReported
from c4bench.model.telemetry import Failure, Member
from c4bench.wire.messages import (
    ChooseQps,
    Empty,
    Exchange,
    Exchanged,
    Fail,
    FollowGuidance,
    InboxBatch,
    JobSpec,
    Meet,
    NetworkLost,
    PollInbox,
    RelayMessage,
    Release,
    Result,
    Route,
    Watch,
)
from c4bench.wire.requests import OF_RANKS


class Scene:
    """A job with ranks 0 and 1 on h0 and rank 2 on h1."""

    def __init__(self):
        members = tuple(Member(rank, host, ()) for rank, host in enumerate(("h0", "h0", "h1")))
        self.job = Job(JobSpec("j", "none", members, ()))
        self.jobs, self.ingested = {"j": self.job}, []
        detection = SimpleNamespace(ingest=lambda job, record: self.ingested.append((job, record)))
        paths = SimpleNamespace(choose_qps=self.path, route=self.path, release=self.path, follow=self.path)
        self.live = {}
        authorisation = Authorisation(self.jobs, self.live.get, lambda _: None)
        waits = RendezvousService(), Meetings(self.jobs)
        self.requests = RankRequests(self.jobs, *waits, detection, paths, authorisation)

    async def path(self, request):
        """As the path service."""
        return request

    async def ask(self, host, method, request):
        """A request by the agent of a host, as it arrives."""
        handler = self.requests.handlers(host)[method]
        assert isinstance(request, handler.body)
        return await handler.function(request)


def play(scene):
    """Run a scene."""
    return asyncio.run(asyncio.wait_for(scene(Scene()), 10))


def test_a_failure_reaches_the_other_ranks_and_c4d():
    """Members that watch are told, and C4D has it with the master's time, under the job."""

    async def scene(it):
        watching = asyncio.create_task(it.ask("h1", "watch", Watch("j", "c")))
        await asyncio.sleep(0)
        began_s, failure = time.time(), Failure(0, "sending failed")
        assert await it.ask("h0", "fail", Fail("j", "c", failure)) == Empty()
        assert await watching == failure
        ((job, record),) = it.ingested
        assert (job, record) == ("j", FailureReported(record.at_s, "j", "c", failure, 0))
        assert began_s <= record.at_s <= time.time()

    play(scene)


def test_a_loss_is_known_to_c4d(caplog):
    """What a rank goes on without is a record of the job, and a warning with rank and component."""

    async def scene(it):
        loss = NetworkLoss(2, Component("nic", "h1/0"), 5.0)
        assert await it.ask("h1", "lost", NetworkLost("j", "c", loss)) == Empty()
        ((job, record),) = it.ingested
        assert (job, record) == ("j", LossReported(record.at_s, "j", "c", loss, 2))

    play(scene)
    assert "j: rank 2 continues without" in caplog.text


def test_messages_go_by_the_masters_inbox():
    """A message of one host's rank is in the inbox of another's."""

    async def scene(it):
        assert await it.ask("h0", "word", RelayMessage("j", "c", 0, 2, b"hello")) == Empty()
        assert await it.ask("h1", "news", PollInbox("j", "c", 2, 0)) == InboxBatch((b"hello",), 1)
        exchange = Exchange("j", "c", "k", 0, 1, b"x", 1.0)
        assert await it.ask("h0", "exchange", exchange) == Exchanged((b"x",))

    play(scene)


def test_results_are_taken_from_the_ranks_own_host():
    """A result belongs to the job that runs; that of an attempt which has ended is dropped without a word."""

    async def scene(it):
        assert await it.ask("h1", "result", Result("j", 2, {"kind": "done"}, 1)) == Empty()
        assert [result.rank for result in it.job.results] == [2]
        assert await it.ask("h0", "result", Result("j~0", 0, {"kind": "done"}, 1)) == Empty()
        for rank in (2, 3, -1):
            with pytest.raises(UnhealthyError, match="the agent of h0 does not speak for these ranks of job j"):
                await it.ask("h0", "result", Result("j", rank, {}, 1))
        assert len(it.job.results) == 1

    play(scene)


@pytest.mark.parametrize(
    ("method", "request_"),
    [
        ("exchange", Exchange("k", "", "k", 0, 2, b"", 1.0)),
        ("meet", Meet("k", 0, "start")),
        ("watch", Watch("k" * 200, "c")),
        ("fail", Fail("k", "c", Failure(0, "a lie"))),
    ],
)
def test_a_job_that_does_not_run_has_no_requests(method, request_):
    """Whatever is asked about it is refused; a name without end is cut short in the answer."""

    async def scene(it):
        with pytest.raises(UnhealthyError, match=r"job 'k+' does not run") as refused:
            await it.ask("h0", method, request_)
        assert len(str(refused.value)) < 160
        assert it.ingested == []

    play(scene)


@pytest.mark.parametrize("method", ["exchange", "meet", "watch", "fail", "lost", "word", "news"])
def test_a_host_without_ranks_of_a_job_says_nothing_about_it(method, caplog):
    """Each kind of request is refused, with a warning that names the host and the request."""
    requests = {
        "exchange": Exchange("j", "", "k", 0, 2, b"", 1.0),
        "meet": Meet("j", 0, "start"),
        "watch": Watch("j", "c"),
        "fail": Fail("j", "c", Failure(0, "a lie")),
        "lost": NetworkLost("j", "c", NetworkLoss(0, Component("nic", "h0/0"), 1.0)),
        "word": RelayMessage("j", "c", 0, 1, b"x"),
        "news": PollInbox("j", "c", 0, 0),
    }

    async def scene(it):
        with pytest.raises(UnhealthyError, match="the agent of h9 does not speak for these ranks of job j"):
            await it.ask("h9", method, requests[method])
        assert it.ingested == []

    play(scene)
    assert f"agent of h9 refused: its {method} of j: the agent of h9 does not speak for these ranks" in caplog.text


def test_every_request_of_the_table_has_an_answer_and_no_other_has():
    """The table of requests and the methods that answer them name the same requests."""
    requests = Scene().requests
    assert requests._answers.keys() == OF_RANKS.keys()
    assert requests.handlers("h0").keys() == OF_RANKS.keys()
    assert {name for name, handler in requests.handlers("h0").items() if handler.most_bytes > 1 << 20} == set()


NIC = Nic("h0", 0, "", "", "10.0.0.1", 1e10)
FLOW = Flow("j/j:data/0>1/0.0", "j", "h0/0", "h1/0", 1e10)


@pytest.mark.parametrize(
    ("method", "request_", "words"),
    [
        ("route", Route("j", (replace(FLOW, source="h1/0", destination="h0/0"),)), "h1/0 is no NIC of h0 in job j"),
        ("route", Route("j", (replace(FLOW, destination="h9/0"),)), "h9/0 is no NIC of job j"),
        ("route", Route("j", (replace(FLOW, job="k"),)), "is of another job than j"),
        ("route", Route("j", (replace(FLOW, id="k/k:data/0>1/0.0"),)), "is of another job than j"),
        ("route", Route("j", (replace(FLOW, demand_bps=1.1e10),)), "asks for 1.1e\\+10 bit/s; h0/0 sends 1e\\+10"),
        ("route", Route("j", (replace(FLOW, id="j/taken"),)), "is one of h1/0 to h0/0 already"),
        ("release", Release("j", ("j/taken",)), "flow j/taken is not one of h0 in job j"),
        ("qps", ChooseQps("j", (("h1/0", "h0/0"),)), "h1/0 is no NIC of h0"),
        ("follow", FollowGuidance("j", (FLOW,), (), (1.0,)), "an id, a port and a weight"),
        ("follow", FollowGuidance("j", (FLOW,), (1 << 16,), (1.0,)), "65536 is no port of a flow"),
        ("follow", FollowGuidance("j", (FLOW,), (1,), (-0.1,)), "-0.1 is no weight of a flow"),
        ("follow", FollowGuidance("j", (FLOW,), (1,), (1.0,), {"j/other": ""}), "refused flows are not among those"),
        ("exchange", Exchange("j", "c", "k", 0, 2, b"", 1.0, (2, 0)), "does not speak for these ranks"),
        ("exchange", Exchange("j", "c", "k", 0, 2, b"", 1.0, (0, 0)), "different ranks of job j"),
        ("exchange", Exchange("j", "c", "k", 0, 2, b"", 1.0, (0, 7)), "different ranks of job j"),
        ("exchange", Exchange("j", "c", "k", 0, 3, b"", 1.0, (0, 1)), "3 ranks take part, of 2 seats"),
        ("exchange", Exchange("j", "c", "k", 0, 5, b"", 1.0), "5 ranks take part, of job j, which has 3"),
        ("exchange", Exchange("j", "c", "k", 3, 3, b"", 1.0), "rank 3 of 3 is none"),
        ("watch", Watch("j", "c", (2,)), "does not speak for these ranks"),
        ("watch", Watch("j", "c" * 1025), "is not of up to 1,024 printable characters"),
        ("fail", Fail("j", "c", Failure(1, "x"), 0), "rank 0 reports a failure of rank 1"),
        ("word", RelayMessage("j", "c", 0, 9, b""), "rank 9 of 4 is none"),
    ],
)
def test_a_request_is_held_against_what_it_speaks_for(method, request_, words):
    """Each thing that a request names must be its sender's, or exist; it says which is not."""

    async def scene(it):
        it.job.nics = {"h0/0": NIC, "h1/0": NIC}
        it.live["j/taken"] = Flow("j/taken", "j", "h1/0", "h0/0", 1.0)
        with pytest.raises(C4Error, match=words):
            await it.ask("h0", method, request_)

    play(scene)


def test_a_rank_speaks_by_its_seat_and_of_a_host_that_is_lost():
    """Numbers in a communicator are the job's ranks by its seats; a lost host's rank is reported by another one."""

    async def scene(it):
        it.job.nics = {"h0/0": NIC, "h1/0": NIC}
        assert await it.ask("h0", "route", Route("j", (FLOW,))) == Route("j", (FLOW,))
        lost = Failure(1, "no NIC of rank 1's host can be reached", "HOST_LOST", 1)
        assert await it.ask("h0", "fail", Fail("j", "c", lost, 0, (1, 2))) == Empty()
        ((_, record),) = it.ingested
        assert (record.failure, record.seat) == (lost, 2)

    play(scene)
