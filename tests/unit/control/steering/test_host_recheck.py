"""Which hosts out of service are tested, with which partner, and which of them are put back."""

import asyncio
from types import SimpleNamespace

import pytest

from c4bench.control import steering
from c4bench.control.state.event_log import EventLog
from c4bench.control.state.registry import JobRegistry
from c4bench.control.state.store import Store
from c4bench.control.steering import FleetState, HostRecheck
from c4bench.errors import UnhealthyError
from c4bench.model.diagnosis import Component
from c4bench.model.fabric import Host, Nic
from c4bench.model.steering import Policy
from c4bench.model.telemetry import Member
from c4bench.wire.messages import JobSpec, LaunchJob


def host(name):
    return Host(name, "", (Nic(name, 0, "r", "n", "", 1e10),))


class Scene:
    """A job on h0 and h1 with spares h2 and h3; h1 has been taken out of service for it at 1000 s."""

    def __init__(self, monkeypatch):
        self.now_s, self.fraction, self.tested = 1000.0, 0.95, []
        monkeypatch.setattr(steering, "time", SimpleNamespace(time=lambda: self.now_s))
        self.registry, self.log = JobRegistry(Store(None), adopt=False), EventLog(Store(None))
        members = tuple(Member(rank, f"h{rank}", ()) for rank in range(2))
        spec = JobSpec("j", "none", members, tuple(nic for name in ("h0", "h1") for nic in host(name).nics))
        self.registry.add(LaunchJob(spec, Policy(check_every_s=30.0), (host("h2"), host("h3"))))
        self.registry.isolate(host("h1"), Component("host", "h1"), "j", self.now_s)
        fine = SimpleNamespace(hello=SimpleNamespace(rdma=""))
        self.agents = SimpleNamespace(by_host=dict.fromkeys(("h0", "h1", "h2", "h3"), fine))
        self.busy = {"h0"}
        attempts = SimpleNamespace(busy=lambda: self.busy)
        self.fleet = FleetState(self.registry, self.agents, attempts, SimpleNamespace(graph=None))
        self.recheck = HostRecheck(self.registry, self.fleet, SimpleNamespace(worst_fraction=self.measure), self.log)

    async def measure(self, tested, partner):
        """As the transfers between two hosts."""
        self.tested.append((tested.name, partner.name))
        if self.fraction is None:
            raise UnhealthyError("a transfer failed")
        return self.fraction

    def look(self, now_s):
        """Test the hosts that are due at that time; whether h1 is still out."""
        self.now_s = now_s
        asyncio.run(self.recheck._test_due())
        return [isolated.host for isolated in self.registry.isolated()] == ["h1"]


@pytest.fixture
def scene(monkeypatch):
    return Scene(monkeypatch)


def test_a_host_that_is_fast_again_is_put_back(scene):
    """It is tested with the first idle spare, once the policy's time has passed; everybody is told its share."""
    assert scene.look(1029.9)
    assert scene.tested == []
    assert not scene.look(1030.0)
    assert scene.tested == [("h1", "h2")]
    (event,) = scene.log.events
    assert (event.time_s, event.host, event.fraction) == (1030.0, "h1", 0.95)
    assert [spare.name for spare in scene.registry.running("j").spares] == ["h2", "h3", "h1"]


@pytest.mark.parametrize("fraction", [0.89, None])
def test_a_host_that_is_slow_or_fails_stays_out_and_is_tested_again(scene, fraction):
    """The next test comes a period after the last one, not after the host was taken out."""
    scene.fraction = fraction
    assert scene.look(1050.0)
    assert scene.look(1079.0)
    assert scene.look(1080.0)
    assert scene.tested == [("h1", "h2")] * 2
    scene.fraction = 0.9
    assert not scene.look(1111.0)
    assert [event.host for event in scene.log.events] == ["h1"]


def test_a_test_disturbs_no_job(scene):
    """A partner, and the host itself, must be idle and connected, and its RDMA must work; else nothing is tested."""
    broken = SimpleNamespace(hello=SimpleNamespace(rdma="no RDMA device"))
    scene.busy = {"h0", "h2"}
    scene.fraction = 0.1
    assert scene.look(1031.0)
    assert scene.tested == [("h1", "h3")]
    scene.agents.by_host["h3"] = broken
    assert scene.look(1062.0)
    del scene.agents.by_host["h3"]
    assert scene.look(1093.0)
    scene.busy = {"h0", "h1"}
    assert scene.look(1124.0)
    assert len(scene.tested) == 1


def test_a_host_put_back_by_hand_meanwhile_is_put_back_once(scene):
    """Nothing is published for a host that an operator has put back while it was tested."""

    async def measure(tested, _):
        scene.registry.return_host(tested.name)
        return 1.0

    scene.recheck._probes.worst_fraction = measure
    assert not scene.look(1031.0)
    assert scene.log.events == []


def test_a_decision_knows_the_state_of_the_fleet(scene):
    """Members, how many are wanted, the idle spares in order, and when hosts were taken out and jobs restarted."""
    scene.registry.restart("j", {"h1": host("h3")}, (), 900.0)
    scene.registry.isolate(host("h2"), Component("host", "h2"), "j", 1001.0)
    fleet = scene.fleet.fleet(scene.registry.running("j"))
    assert [member.host for member in fleet.members] == ["h0", "h3"]
    assert (fleet.wanted, fleet.taken_s, fleet.restarts_s) == (2, (1000.0, 1001.0), (900.0,))
    assert [spare.name for spare in fleet.spares] == ["h3"]
