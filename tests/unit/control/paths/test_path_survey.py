"""Requests to agents for probes and for packets that switches count."""

import asyncio
import math

import msgspec
import pytest

from c4bench.agent import agent as agents
from c4bench.agent.agent import Agent
from c4bench.c4p.knowledge.atlas import Question
from c4bench.control.paths import survey as path_survey
from c4bench.control.paths.survey import PathSurvey
from c4bench.errors import UnhealthyError
from c4bench.model.agent import AgentConfig
from c4bench.model.fabric import Arrived, HopAnswer, Nic, Train
from c4bench.model.recording import Delivery, TimedFlow
from c4bench.verbs.probe import ROCE_PORT
from c4bench.wire.messages import Empty
from c4bench.wire.probes import Burst, BurstRequest, Heard, ProbeAnswer, ProbeRequest


class Requests:
    """A connection to an agent that notes requests; no probe is answered."""

    def __init__(self):
        self.noted = []

    async def call(self, _, request, answer):
        self.noted.append(request)
        return ProbeAnswer((HopAnswer(),) * len(request.probes)) if answer is ProbeAnswer else Empty()


@pytest.mark.parametrize("dscp", [0, 26])
def test_probes_and_counted_packets_are_asked_for_in_the_class_of_their_nic(dscp):
    """Agents are told the traffic class of the sending NIC in the master's inventory, for probes and for bursts."""
    near, far = (Nic(f"h{n}", 0, "", "", f"10.0.{n}.1", 1e10, dscp=dscp) for n in range(2))
    agent, nics = Requests(), {nic.name: nic for nic in (near, far)}
    survey = PathSurvey(lambda _: agent)

    async def play():
        await survey.check([Question((near.name, far.name), 50001, 0)], nics)
        await survey.count_switches([(near, far)], 50001)
        await survey.burst((near, far), [Burst(50001, 1, 4)])

    asyncio.run(play())
    assert [type(request) for request in agent.noted] == [ProbeRequest, ProbeRequest, BurstRequest]
    assert [request.traffic_class for request in agent.noted] == [dscp << 2] * 3


class Counting:
    """A host's agent, which sends and counts; what `network` has is what arrived, by destination address and token."""

    def __init__(self, address, network, *, counts=True, shows=True, trains=()):
        self.address, self.network, self.counts, self.shows, self.trains = address, network, counts, shows, trains
        self.asked, self.within_s = [], 0.0

    async def call(self, method, request, _):
        if method == "listen" and not self.counts:
            raise UnhealthyError("CAP_NET_RAW is missing")
        if method == "listen":
            self.within_s = request.within_s
        if method == "number":
            self.asked.append(request)
            for flow in request.flows:
                small = (0, 0) if request.train_bytes else (request.count, request.count - 1)
                arrived = Arrived(self.address, flow.source_port, *small, 0, self.trains)
                self.network.setdefault((flow.destination, request.token), []).append(arrived)
        if method == "heard":
            return Heard(tuple(self.network.get((self.address, request.token), ())) if self.shows else ())
        return Empty()


FLOWS = [("h0/0", "h1/0", 7), ("h0/0", "h2/0", 8), ("h1/0", "h2/0", 7)]


@pytest.fixture
def counting(monkeypatch):
    """Have three NICs, the last of them slower, do as asked, whose agents are as stated; return what comes of it."""
    monkeypatch.setattr(path_survey, "_ARRIVE_S", 0.0)
    rates = 1e10, 1e10, 2e8
    nics = {nic.name: nic for nic in (Nic(f"h{n}", 0, "", "", f"10.0.{n}.1", rate) for n, rate in enumerate(rates))}

    def run(do, agents):
        network = {}
        peers = {nic.host: Counting(nic.address, network, **agents.get(nic.host, {})) for nic in nics.values()}
        return asyncio.run(do(PathSurvey(peers.__getitem__), nics)), peers

    return run


@pytest.fixture
def delivered(counting):
    """Send numbered packets; return what arrived."""
    return lambda **agents: counting(lambda survey, nics: survey.deliver(FLOWS, nics, 50), agents)[0]


def test_numbered_packets_are_counted_flow_by_flow(delivered):
    """Of each flow it is known what was sent and what arrived."""
    assert delivered() == tuple(Delivery(*flow, 50, 50, 49, 0) for flow in FLOWS)


def test_flows_that_nobody_counts_are_left_out(delivered):
    """A NIC whose agent cannot count says nothing; one at which nothing arrives has lost it, if others see packets."""
    assert [one[:3] for one in delivered(h2={"counts": False})] == [("h0/0", "h1/0", 7)]
    assert [one.data for one in delivered(h2={"shows": False})] == [50, 0, 0]
    assert delivered(h1={"shows": False}, h2={"shows": False}) == ()


TRAIN = Train(0.1, 8e-10)


def test_packet_trains_are_timed_flow_by_flow(counting):
    """Of each flow it is known how many trains were sent, how they arrived, and the rate of its slower NIC."""
    both = {"trains": (TRAIN, TRAIN)}
    timed, _ = counting(lambda survey, nics: survey.time_trains(FLOWS, nics, 2), {"h0": both, "h1": both})
    assert timed == tuple(
        TimedFlow(*flow, 2e8 if flow[1] == "h2/0" else 1e10, 65536, 2, (TRAIN,) * 2) for flow in FLOWS
    )


@pytest.mark.parametrize(("sender", "bps"), [("h1", 0.004 * 1e10), ("h2", 20e6)])
def test_trains_take_little_of_a_nic_and_are_waited_for(counting, sender, bps):
    """Trains go out at 0.4 % of a NIC's rate, or at 20 Mbit/s, and are listened for as long as it takes."""
    flows = [(f"{sender}/0", "h0/0", 7), (f"{sender}/0", "h0/0", 8)]
    _, peers = counting(lambda survey, nics: survey.time_trains(flows, nics, 10), {})
    (asked,) = peers[sender].asked
    assert 8 * asked.train_bytes * asked.rate_pps == pytest.approx(bps)
    assert peers["h0"].within_s == pytest.approx(2 * asked.count / asked.rate_pps + 5.0)


@pytest.mark.parametrize("wild", [Train(math.nan, 1.0), Train(1.0, math.inf), Train(-math.inf, 0.0)])
def test_times_that_are_no_numbers_are_left_out(counting, wild):
    """An agent may say anything: times that no recording can hold are left out, and more trains than were sent."""
    said = {"trains": (wild, TRAIN, TRAIN, TRAIN)}
    (timed, *_), _ = counting(lambda survey, nics: survey.time_trains(FLOWS, nics, 2), {"h0": said})
    assert timed.trains == (TRAIN,)


def test_trains_that_nobody_times_are_left_out(counting):
    """A NIC whose agent cannot count says nothing; flows whose trains did not arrive have none."""
    (timed, *others), _ = counting(lambda survey, nics: survey.time_trains(FLOWS, nics, 2), {"h2": {"counts": False}})
    assert (timed[:3], timed.trains, others) == (FLOWS[0], (), [])


@pytest.mark.parametrize("traffic_class", [0, 104])
def test_agents_send_in_the_class_they_are_asked_for(monkeypatch, traffic_class):
    """An agent sends probes and bursts in the class of the request, whatever its own file says of the NIC."""
    sent = []
    monkeypatch.setattr(agents, "send_probes", lambda *_, **options: sent.append(options["traffic_class"]) or [])
    monkeypatch.setattr(agents, "send_bursts", lambda *arguments: sent.append(arguments[-1]))
    agent = Agent(AgentConfig("h0", "", "", (Nic("h0", 0, "", "lo", "127.0.0.1", 1e10, dscp=7),)), None, None)

    async def play():
        await agent._probe(ProbeRequest(0, (), 0.1, 1e4, ROCE_PORT, traffic_class))
        await agent._burst(BurstRequest(0, "127.0.0.1", (), 1e4, traffic_class))

    asyncio.run(play())
    assert sent == [traffic_class] * 2


def test_class_0_is_not_in_the_messages():
    """Without a class the requests are those of a version that knows none."""
    for request in (ProbeRequest(0, (), 0.1, 1e4, ROCE_PORT), BurstRequest(0, "10.0.1.1", (), 1e4)):
        assert "traffic_class" not in msgspec.msgpack.decode(msgspec.msgpack.encode(request))
