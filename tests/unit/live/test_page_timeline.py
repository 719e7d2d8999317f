"""Every kind of event has an entry that people can read."""

import typing

import pytest

from c4bench.live.feed import entries_of, entry_of_fault
from c4bench.model.benign import Benign, BenignSlowdown
from c4bench.model.diagnosis import Component, Diagnosis, Syndrome
from c4bench.model.event import (
    AgentBack,
    AgentMissing,
    Diagnosed,
    Event,
    HookRan,
    HostReturned,
    SlowdownExplained,
    SteeringStage,
)
from c4bench.model.steering import Action, Incident

NIC = Component("nic", "h5/0", "rx")
FOUND = Diagnosis(
    "t~1", Syndrome.COMMUNICATION_SLOW, NIC, 1.0, 2.0, 3.0, 0.93, ("its column is slow",), "a fast column"
)
SLOWDOWN = BenignSlowdown("t~1", Benign.CONGESTION, NIC, ("10.0.0.1",), 1.0, 2.0, ("link 10.0.0.1 is full",))
INCIDENT = Incident("t", FOUND, Action.RESTART, "", out="h5", spare="h9")


def stage(**reached):
    values = {name: getattr(INCIDENT, name) for name in INCIDENT.__struct_fields__} | reached
    return SteeringStage(9.0, Incident(**values))


EVENTS = [
    (
        Diagnosed(3.5, FOUND),
        [(2.0, "alarm", "communication slow"), (3.0, "finding", "nic h5/0 (rx)")],
        "confidence 93%",
    ),
    (stage(), [(9.0, "action", "nic h5/0 (rx)")], "decided to restart"),
    (
        HookRan(9.0, "j", Component("nic", "h5/0"), "drain", 1, "no such node"),
        [(9.0, "action", "nic h5/0")],
        "drain, exit code 1: no such node",
    ),
    (stage(isolated_s=5.0), [(9.0, "action", "nic h5/0 (rx)")], "h5 is out of service"),
    (stage(restarted_s=6.0), [(9.0, "action", "nic h5/0 (rx)")], "restarted on h9"),
    (stage(resumed_s=7.0, resumed_step=40), [(9.0, "action", "nic h5/0 (rx)")], "trains again from step 40"),
    (SlowdownExplained(9.0, SLOWDOWN), [(9.0, "benign", "nic h5/0 (rx)")], "congestion; link 10.0.0.1 is full"),
    (AgentMissing(9.0, "h5", 3.0, "still"), [(9.0, "host", "h5")], "not been heard of for 6 s; ranks there: still"),
    (AgentBack(9.0, "h5", 3.0), [(9.0, "host", "h5")], "back after 6 s"),
    (HostReturned(9.0, "h5", 0.97), [(9.0, "host", "h5")], "97% of the payload bound"),
    (HostReturned(9.0, "h5"), [(9.0, "host", "h5")], "by hand"),
]


@pytest.mark.parametrize(("event", "expected", "text"), EVENTS)
def test_an_event_is_told_at_its_own_time(event, expected, text):
    """An entry has the time, the kind and the subject of what happened, and says what it was."""
    found = entries_of(event, {})
    assert [(entry.time_s, entry.kind, entry.subject) for entry in found] == expected
    assert text in found[-1].text


def test_links_have_their_names():
    """People know a link by the ports that it joins; one without a name keeps its address."""
    links = {"10.0.0.1": "leaf2/up1 > spine1/down2"}
    link = Component("link", "10.0.0.1")
    slowdown = BenignSlowdown(
        "t", Benign.CONGESTION, link, (), 1.0, 2.0, ("link 10.0.0.1 is full", "link 10.0.0.2: no")
    )
    (entry,) = entries_of(SlowdownExplained(9.0, slowdown), links)
    assert entry.subject == "link leaf2/up1 > spine1/down2"
    assert entry.text.endswith("; link leaf2/up1 > spine1/down2 is full; link 10.0.0.2: no")
    assert entries_of(SlowdownExplained(9.0, slowdown), {})[0].subject == "link 10.0.0.1"


def test_every_kind_of_event_is_tried():
    """No kind of event is left out above."""
    assert {type(event) for event, _, _ in EVENTS} == set(typing.get_args(Event))


def test_lines_of_a_history():
    """Lines about faults have entries; others and malformed ones have none."""
    line = {"time_s": 4, "kind": "fault_refused", "fault": "nic.rate", "host": "h1", "error": "no such NIC"}
    entry = entry_of_fault(line)
    assert (entry.time_s, entry.subject, entry.text) == (4.0, "h1", "nic.rate was refused: no such NIC")
    for other in ({}, {"kind": "fault_healed"}, {"time_s": 1.0, "kind": "test_ended"}, {"time_s": "x", "kind": 3}):
        assert entry_of_fault(other) is None
