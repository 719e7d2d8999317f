"""Missing agents: published once after a grace time, with what other hosts receive from their ranks."""

from c4bench.control.agents import AgentLiveness
from c4bench.model.event import AgentBack, AgentMissing
from c4bench.model.telemetry import ArrivalRecord
from tools.sim.windows import window_of

GRACE_S = 5.0


def window(host, messages):
    """A window of h0 with the messages it has received from h1 so far."""
    arrivals = (ArrivalRecord("c", 0, 1, "h1/0", "h0/0", 7, messages),)
    return window_of(host, 1, 0.0, 0.1, arrivals=arrivals)


def test_an_agent_is_missing_after_the_grace_time_and_once():
    """An agent becomes missing once, after the grace time, and an event is published when it is back."""
    liveness = AgentLiveness((), 0.0, GRACE_S)
    assert liveness.connected("h1", 1.0) is None
    liveness.lost("h1", 10.0)
    assert liveness.evaluate(14.9, ["h1"]) == []
    assert liveness.evaluate(15.0, ["h1"]) == [AgentMissing(15.0, "h1", 10.0, "still")]
    assert liveness.evaluate(16.0, ["h1"]) == []
    assert liveness.connected("h1", 20.0) == AgentBack(20.0, "h1", 10.0)
    assert not liveness.missing
    liveness.lost("h1", 30.0)
    assert len(liveness.evaluate(36.0, [])) == 1


def test_an_agent_that_is_back_in_time_was_never_missing():
    """An agent that connects again within the grace time causes no event."""
    liveness = AgentLiveness((), 0.0, GRACE_S)
    liveness.lost("h1", 10.0)
    assert liveness.connected("h1", 12.0) is None
    assert liveness.evaluate(100.0, ["h1"]) == []


def test_agents_of_an_earlier_master_are_expected():
    """After a restart of the master, each expected agent has the grace time to connect."""
    liveness = AgentLiveness(("h1", "h2"), 100.0, GRACE_S)
    liveness.connected("h2", 101.0)
    assert [event.host for event in liveness.evaluate(105.0, [])] == ["h1"]


def test_an_agent_that_leaves_is_not_expected():
    """An agent that disconnects in order does not become missing."""
    liveness = AgentLiveness(("h1",), 0.0, GRACE_S)
    liveness.left("h1")
    assert liveness.evaluate(10.0, []) == []


def test_messages_that_arrive_elsewhere_show_live_ranks():
    """The ranks of a missing agent count as alive while the messages that they post still arrive elsewhere."""
    for counts, ranks in (((10, 10), "still"), ((10, 11), "moving"), ((), "still")):
        liveness = AgentLiveness((), 0.0, GRACE_S)
        liveness.ingest(window("h0", 9))
        liveness.lost("h1", 10.0)
        for count in counts:
            liveness.ingest(window("h0", count))
        assert [event.ranks for event in liveness.evaluate(15.0, ["h1"])] == [ranks]
    assert [event.ranks for event in AgentLiveness(("h1",), 0.0, GRACE_S).evaluate(6.0, [])] == ["none"]
