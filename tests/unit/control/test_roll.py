"""Who is missing: after a grace time, said once, with what the others see of the ranks there."""

from c4bench.control.agent_liveness import AgentLiveness
from c4bench.model.event import AgentBack, AgentMissing
from c4bench.model.telemetry import ArrivalRecord, Window

GRACE_S = 5.0


def window(host, messages):
    """What h0 has received from h1 so far."""
    arrivals = (ArrivalRecord("c", 0, 1, "h1/0", "h0/0", 7, messages),)
    return Window(host, 1, 0.0, 0.1, (), (), (), (), arrivals)


def test_an_agent_is_missed_after_the_grace_time_and_once():
    """Not before, not again, and when it is back that is said, too."""
    roll = AgentLiveness((), 0.0, GRACE_S)
    assert roll.came("h1", 1.0) is None
    roll.went("h1", 10.0)
    assert roll.judge(14.9, ["h1"]) == []
    assert roll.judge(15.0, ["h1"]) == [AgentMissing(15.0, "h1", 10.0, "still")]
    assert roll.judge(16.0, ["h1"]) == []
    assert roll.came("h1", 20.0) == AgentBack(20.0, "h1", 10.0)
    assert not roll.missing
    roll.went("h1", 30.0)
    assert len(roll.judge(36.0, [])) == 1


def test_one_that_is_back_in_time_was_never_missing():
    """A master or an agent that restarts is no news."""
    roll = AgentLiveness((), 0.0, GRACE_S)
    roll.went("h1", 10.0)
    assert roll.came("h1", 12.0) is None
    assert roll.judge(100.0, ["h1"]) == []


def test_what_an_earlier_master_expected_is_expected():
    """After a restart everybody has the grace time to come back; who does not is missing."""
    roll = AgentLiveness(("h1", "h2"), 100.0, GRACE_S)
    roll.came("h2", 101.0)
    assert [event.host for event in roll.judge(105.0, [])] == ["h1"]


def test_an_agent_that_says_goodbye_is_not_expected():
    """Nor missing any more, if it was."""
    roll = AgentLiveness(("h1",), 0.0, GRACE_S)
    roll.left("h1")
    assert roll.judge(10.0, []) == []


def test_ranks_that_still_send_tell_a_lost_agent_from_a_lost_host():
    """Data that arrives elsewhere was posted by a rank that lives; a count that stands still was not."""
    for counts, ranks in (((10, 10), "still"), ((10, 11), "moving"), ((), "still")):
        roll = AgentLiveness((), 0.0, GRACE_S)
        roll.saw(window("h0", 9))
        roll.went("h1", 10.0)
        for count in counts:
            roll.saw(window("h0", count))
        assert [event.ranks for event in roll.judge(15.0, ["h1"])] == [ranks]
    assert [event.ranks for event in AgentLiveness(("h1",), 0.0, GRACE_S).judge(6.0, [])] == ["none"]
