"""Requests to agents for probes and for packets that switches count."""

import asyncio

import msgspec
import pytest

from c4bench.agent import agent as agents
from c4bench.agent.agent import Agent
from c4bench.c4p.knowledge.path_checks import Check
from c4bench.control import path_survey
from c4bench.control.path_survey import PathSurvey
from c4bench.errors import UnhealthyError
from c4bench.model.agent import AgentConfig
from c4bench.model.fabric import Arrived, HopAnswer, Nic
from c4bench.model.recording import Delivery
from c4bench.verbs.probe import ROCE_PORT
from c4bench.wire.messages import Burst, BurstRequest, Empty, ProbeAnswer, ProbeRequest
from c4bench.wire.numbered_packets import Heard


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
        await survey.check([Check((near.name, far.name), 50001, 0)], nics)
        await survey.count_switches([(near, far)], 50001)
        await survey.burst((near, far), [Burst(50001, 1, 4)])

    asyncio.run(play())
    assert [type(request) for request in agent.noted] == [ProbeRequest, ProbeRequest, BurstRequest]
    assert [request.traffic_class for request in agent.noted] == [dscp << 2] * 3


class Counting:
    """A host's agent, which sends and counts; what `network` has is what arrived, by destination address and token."""

    def __init__(self, address, network, *, counts=True, shows=True):
        self.address, self.network, self.counts, self.shows = address, network, counts, shows

    async def call(self, method, request, _):
        if method == "listen" and not self.counts:
            raise UnhealthyError("CAP_NET_RAW is missing")
        if method == "number":
            for flow in request.flows:
                arrived = Arrived(self.address, flow.source_port, request.count, request.count - 1, 0)
                self.network.setdefault((flow.destination, request.token), []).append(arrived)
        if method == "heard":
            return Heard(tuple(self.network.get((self.address, request.token), ())) if self.shows else ())
        return Empty()


@pytest.fixture
def delivered(monkeypatch):
    """Send numbered packets among three NICs, whose agents are as stated; return what arrived."""
    monkeypatch.setattr(path_survey, "_ARRIVE_S", 0.0)
    nics = {nic.name: nic for nic in (Nic(f"h{n}", 0, "", "", f"10.0.{n}.1", 1e10) for n in range(3))}

    def run(**agents):
        network = {}
        peers = {nic.host: Counting(nic.address, network, **agents.get(nic.host, {})) for nic in nics.values()}
        flows = [("h0/0", "h1/0", 7), ("h0/0", "h2/0", 8), ("h1/0", "h2/0", 7)]
        return asyncio.run(PathSurvey(peers.__getitem__).deliver(flows, nics, 50))

    return run


def test_numbered_packets_are_counted_flow_by_flow(delivered):
    """Of each flow it is known what was sent and what arrived."""
    flows = [("h0/0", "h1/0", 7), ("h0/0", "h2/0", 8), ("h1/0", "h2/0", 7)]
    assert delivered() == tuple(Delivery(*flow, 50, 50, 49, 0) for flow in flows)


def test_flows_that_nobody_counts_are_left_out(delivered):
    """A NIC whose agent cannot count says nothing; one at which nothing arrives has lost it, if others see packets."""
    assert [one[:3] for one in delivered(h2={"counts": False})] == [("h0/0", "h1/0", 7)]
    assert [one.data for one in delivered(h2={"shows": False})] == [50, 0, 0]
    assert delivered(h1={"shows": False}, h2={"shows": False}) == ()


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
