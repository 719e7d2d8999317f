import time
from types import SimpleNamespace

import msgspec
import pytest
from fakes import NIC

from c4bench.errors import InconclusiveError, UnhealthyError, UsageError
from c4bench.inject import catalogue, controller, protocol
from c4bench.inject.controller import Injector
from c4bench.inject.places import Place
from c4bench.inject.protocol import Applied, Healed, Leaving, Planned, Refused
from c4bench.model.diagnosis import Component, Syndrome
from c4bench.model.fabric import Host
from c4bench.model.fault import BlastRadius, FaultRequest, WitnessReport
from c4bench.record.run import RunDirectory
from c4bench.remote import Completed

HOST = Host("h5", "10.255.0.15", (NIC,), disruptive=True)
SEEN = WitnessReport(True, 10.5, {"peak_bps": 9e9}, {"peak_bps": 2.4e9})
APPLIED = Applied(
    "id", "nic.rate", Component("nic", "h5/0", "rx"), Syndrome.COMMUNICATION_SLOW, 10.0, 0.001, 40.0, SEEN
)
HEALED = Healed("id", "asked", "injector", 12.0, True, {"peak_bps": 9e9}, (), ())


class ScriptedHost:
    """A connection, its session and the injector behind it: gives the answers it was made with."""

    def __init__(self, *replies):
        self.replies, self.received, self.argv, self.closed = list(replies), [], None, False

    def start(self, argv):
        self.argv = argv
        return self

    def write_line(self, line):
        self.received.append(line)

    def read_line(self, timeout_s):
        assert timeout_s > 0
        if not self.replies:
            raise UnhealthyError("h5: python ended")
        return protocol.encode(self.replies.pop(0))

    def close(self):
        self.closed = True


def apply(host, record=None, **changes):
    injector = Injector(lambda _: host, lambda _: "/opt/c4/python", record)
    return injector.apply("nic.rate", HOST, **({"nic": 0, "direction": "rx"} | changes))


def test_the_fault_is_asked_for_witnessed_and_reverted(tmp_path):
    """One privileged command carries the whole request; both ends of the fault are events of the run."""
    host, record = ScriptedHost(APPLIED, HEALED), RunDirectory.create(tmp_path, "run")
    with apply(host, record) as fault:
        assert fault.target == Component("nic", "h5/0", "rx")
        assert (fault.onset_s, fault.observed_s) == (10.0, 10.5)
        assert host.received == []
    assert host.received == ["revert"]
    assert host.closed
    assert host.argv[:4] == ["/opt/c4/python", "-m", "c4bench.inject", "hold"]
    asked = msgspec.json.decode(host.argv[4], type=FaultRequest)
    assert (asked.nic, asked.parameters) == (NIC, {"direction": "rx", "fraction": 0.25})
    asked, *ends = record.events()
    assert asked["kind"] == "fault_asked"
    assert [(event["time_s"], event["kind"]) for event in ends] == [(10.0, "fault_applied"), (12.0, "fault_healed")]


@pytest.mark.parametrize(
    ("replies", "error", "complaint"),
    [
        ((msgspec.structs.replace(APPLIED, witness=WitnessReport(False, None, {"passed": 0.0}, {}, "rdma")), HEALED),
         InconclusiveError, "not seen to take effect on the rdma plane .before passed 0"),
        ((APPLIED, msgspec.structs.replace(HEALED, residue=("+ netem",))), UnhealthyError, "not as it was.*netem"),
        ((APPLIED, msgspec.structs.replace(HEALED, recovered=False)), UnhealthyError, "has not recovered"),
        ((APPLIED, msgspec.structs.replace(HEALED, reason="lease")), InconclusiveError, "more than 30 s"),
        ((APPLIED,), UnhealthyError, "python ended"),
        ((Refused("no tbf", 3),), UnhealthyError, "h5: no tbf"),
        ((Refused("no such NIC", 2),), UsageError, "h5: no such NIC"),
    ],
)  # fmt: skip
def test_each_failure_of_a_fault_has_its_own_error(replies, error, complaint):
    """A fault that was not seen says nothing, a host that is not as before is unhealthy; the session ends."""
    host = ScriptedHost(*replies)
    with pytest.raises(error, match=complaint), apply(host):
        pass
    assert host.closed


def test_what_is_done_to_a_host_is_logged(caplog):
    """One line each for requested, applied and healed, and an error for a host that is not clean afterwards."""
    caplog.set_level("INFO", "c4bench")
    left = msgspec.structs.replace(HEALED, residue=("+ netem",))
    with pytest.raises(UnhealthyError), apply(ScriptedHost(APPLIED, left)):
        pass
    where = "nic.rate on h5/0"
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("INFO", f"{where}: requested, lease 30 s"),
        ("INFO", f"{where}: applied, effect seen; id"),
        ("ERROR", "h5 is not clean after the fault, no further fault is applied there: + netem"),
        ("INFO", f"{where}: healed by injector (asked); id"),
    ]
    assert {record.lease for record in caplog.records if hasattr(record, "lease")} == {"id"}


def test_an_error_in_the_block_matters_more_than_one_of_the_revert():
    """The scenario's own failure is what is reported, and the fault is reverted all the same."""
    host = ScriptedHost(APPLIED)
    with pytest.raises(ZeroDivisionError), apply(host):
        _ = 1 / 0
    assert host.received == ["revert"]
    assert host.closed


@pytest.mark.parametrize(
    ("target", "changes", "complaint"),
    [
        (msgspec.structs.replace(HOST, disruptive=False), {}, "not marked `disruptive: true`"),
        (HOST, {"nic": 3}, "h5 has no NIC 3; its NICs: h5/0"),
        (HOST, {"fraction": 2}, "fraction is 2"),
        (HOST, {"nic": None}, "none is named"),
    ],
)
def test_a_wrong_request_never_reaches_the_host(target, changes, complaint):
    """What can be refused here is refused before anything is started."""
    host = ScriptedHost()
    injector = Injector(lambda _: host, lambda _: "python")
    with pytest.raises(UsageError, match=complaint), injector.apply("nic.rate", target, **({"nic": 0} | changes)):
        pass
    assert host.argv is None


LEAVING = Leaving("id", "host.crash", Component("host", "h5"), Syndrome.COMMUNICATION_HANG, 10.0, time.time() + 0.2)


class LostHost(ScriptedHost):
    """A host that a fault takes away: it answers `answering` more times, and again after `back` more attempts."""

    def __init__(self, answering, back, *replies, heal=(0, b"")):
        super().__init__(*replies)
        self.left, self.back, self.heal = answering, back, heal

    def reach(self, host):
        assert host == HOST
        if self.left > 0:
            self.left -= 1
            return True
        self.back -= 1
        return self.back < 0

    def run(self, argv, *, timeout_s, check):
        assert timeout_s > 1
        assert not check
        self.received.append(argv[1:])
        return Completed(self.heal[0], self.heal[1], b"")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.closed = True


def crash(host, record=None):
    injector = Injector(lambda _: host, lambda _: "python", record, reach=host.reach)
    return injector, injector.apply("host.crash", HOST)


def test_a_host_that_leaves_is_witnessed_from_here(tmp_path):
    """It is gone when it stops answering; the block ends once it answers again and is healed of what is left."""
    host, record = LostHost(2, 3, LEAVING), RunDirectory.create(tmp_path, "run")
    _, fault = crash(host, record)
    began_s = time.time()
    with fault as applied:
        assert applied.witness.seen
        assert (applied.witness.before, applied.witness.during) == ({"answers": 1.0}, {"answers": 0.0})
        assert began_s <= applied.onset_s <= time.time()
        assert 0 < applied.onset_bound_s < 5.0
        assert applied.observed_s == applied.onset_s
    assert host.received == [["-m", "c4bench.inject", "heal"]]
    assert host.back < 0
    *_, healed = record.events()
    assert (healed["kind"], healed["host"]) == ("fault_healed", "h5")
    assert healed["time_s"] > applied.onset_s


def test_a_host_that_stays_is_no_evidence(monkeypatch):
    """One that goes on answering was not lost: the fault is reverted as any other, and says nothing."""
    monkeypatch.setattr(controller, "_GONE_WITHIN_S", 0.05)
    host = LostHost(10**6, 0, LEAVING, HEALED)
    with pytest.raises(InconclusiveError, match="before answers 1; during answers 1"), crash(host)[1]:
        pass
    assert host.received == ["revert"]


def test_a_host_that_does_not_come_back_is_quarantined(monkeypatch, tmp_path):
    """After the lease and the time of a restart it is given up, and gets no further fault."""
    monkeypatch.setattr(controller, "_BACK_WITHIN_S", 0.05)
    host, record = LostHost(1, 10**6, LEAVING), RunDirectory.create(tmp_path, "run")
    injector, fault = crash(host, record)
    with pytest.raises(UnhealthyError, match=r"h5 does not answer 0.05 s after host.crash should have ended"), fault:
        pass
    with pytest.raises(UnhealthyError, match=r"h5 is quarantined: h5 does not answer .*`c4bench fault heal`"):
        injector.apply("nic.rate", HOST, nic=0).__enter__()
    quarantined = record.events()[-1]
    assert (quarantined["kind"], quarantined["host"]) == ("host_quarantined", "h5")


def test_what_is_left_on_a_host_that_is_back_is_a_residue():
    """The host's own words say what could not be healed."""
    host = LostHost(1, 2, LEAVING, heal=(3, b"+ route: gone\n"))
    with pytest.raises(UnhealthyError, match=r"not as it was before host.crash on h5: \+ route: gone"), crash(host)[1]:
        pass


def compound(hosts, **changes):
    """`compound.two_nics` on these hosts."""
    injector = Injector(hosts.__getitem__, lambda _: "python")
    places = [
        Place(msgspec.structs.replace(HOST, name=name), msgspec.structs.replace(NIC, host=name)) for name in hosts
    ]
    return injector.apply_compound("compound.two_nics", changes.pop("places", places), **changes)


def test_the_parts_of_a_compound_are_in_force_together():
    """Each part on its target, the later one not before its time; all are reverted, the last one first."""
    order = []

    class Noted(ScriptedHost):
        def write_line(self, line):
            order.append((line, id(self)))
            super().write_line(line)

    hosts = {name: Noted(APPLIED, HEALED) for name in ("h5", "h6")}
    spec = catalogue.load().find("compound.two_nics")
    began_s = time.monotonic()
    with compound(hosts) as applied:
        took_s = time.monotonic() - began_s
        assert len(applied) == len(spec.parts) == 2
        assert order == []
    assert took_s >= max(part.after_s for part in spec.parts)
    by_time = [list(hosts)[part.target] for part in sorted(spec.parts, key=lambda part: part.after_s)]
    assert order == [("revert", id(hosts[name])) for name in reversed(by_time)]
    asked = [msgspec.json.decode(host.argv[4], type=FaultRequest) for host in hosts.values()]
    assert [(request.host, request.nic.name) for request in asked] == [("h5", "h5/0"), ("h6", "h6/0")]
    assert sorted(request.fault for request in asked) == sorted(part.fault for part in spec.parts)


def test_a_compound_is_refused_before_its_first_part():
    """Too few targets, a wider radius than is allowed, or a host that may not be broken: nothing is started."""
    hosts = {name: ScriptedHost() for name in ("h5", "h6")}
    with (
        pytest.raises(UsageError, match="happens to 2 targets, 1 given; name that many"),
        compound(hosts, places=[Place(HOST, NIC)]),
    ):
        pass
    calm = msgspec.structs.replace(HOST, name="h6", disruptive=False)
    with (
        pytest.raises(UsageError, match="h6 is not marked `disruptive: true`"),
        compound(hosts, places=[Place(HOST, NIC), Place(calm, NIC)]),
    ):
        pass
    with (
        pytest.raises(UsageError, match="which is wider than the process you allow"),
        compound(hosts, within=BlastRadius.PROCESS),
    ):
        pass
    assert [host.argv for host in hosts.values()] == [None, None]


def test_a_plan_is_asked_for_and_nothing_is_held():
    """The commands come back as the host would run them; an answer of another kind is an error."""
    planned = Planned(("tc a",), ("tc b",))
    host = ScriptedHost(planned)
    injector = Injector(lambda _: host, lambda _: "python")
    assert injector.plan("nic.rate", Place(HOST, NIC)) == planned
    assert host.argv[3] == "plan"
    assert host.closed
    with pytest.raises(UnhealthyError, match=r"h5: nic.rate was not planned"):
        Injector(lambda _: ScriptedHost(HEALED), lambda _: "python").plan("nic.rate", Place(HOST, NIC))


def test_a_driver_says_why_a_place_cannot_have_a_fault():
    """Its reason is an answer; what is wrong with the request, or with the host, is an error."""

    def ask(*replies):
        injector = Injector(lambda _: ScriptedHost(*replies), lambda _: "python")
        return injector.obstacle("nic.rate", Place(HOST, NIC), {"direction": "rx"})

    assert ask(Planned((), ())) == ""
    assert ask(Refused("it limits only what it sends", UnhealthyError.exit_code)) == "it limits only what it sends"
    with pytest.raises(UsageError, match="h5: no such parameter"):
        ask(Refused("no such parameter", UsageError.exit_code))
    with pytest.raises(UnhealthyError, match="python ended"):
        ask()


@pytest.mark.parametrize("replies", [(HEALED,), (APPLIED, APPLIED)])
def test_answers_out_of_order_are_errors(replies):
    """A fault that ends before it begins, or begins twice, is none."""
    with (
        pytest.raises(UnhealthyError, match=r"nic.rate (ended before it began|did not end)"),
        apply(ScriptedHost(*replies)),
    ):
        pass


def test_a_later_part_begins_its_time_after_the_first_is_applied(monkeypatch):
    """A cascade's second failure comes two seconds after the onset of the first, however long that took."""
    clock = SimpleNamespace(now_s=100.0, slept=[], time=time.time)

    def sleep(seconds):
        clock.slept.append(seconds)
        clock.now_s += seconds

    class Slow(ScriptedHost):
        def read_line(self, timeout_s):
            clock.now_s += 0.7
            return super().read_line(timeout_s)

    clock.sleep, clock.monotonic = sleep, lambda: clock.now_s
    monkeypatch.setattr(controller, "time", clock)
    injector = Injector(lambda _: Slow(APPLIED, HEALED), lambda _: "python")
    with injector.apply_compound("compound.cascade", [Place(HOST, NIC)]) as applied:
        assert len(applied) == 2
        assert clock.slept == [0.0, pytest.approx(2.0)]
