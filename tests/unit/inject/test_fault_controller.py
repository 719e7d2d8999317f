import msgspec
import pytest
from fakes import NIC

from c4bench.errors import InconclusiveError, UnhealthyError, UsageError
from c4bench.inject import protocol
from c4bench.inject.controller import Injector
from c4bench.inject.protocol import Applied, Healed, Refused
from c4bench.model.diagnosis import Component, Syndrome
from c4bench.model.fabric import Host
from c4bench.model.fault import FaultRequest, WitnessReport
from c4bench.record.run import RunDirectory

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
        ((msgspec.structs.replace(APPLIED, witness=WitnessReport(False, None, {"passed": 0.0}, {})), HEALED),
         InconclusiveError, "not seen to take effect .before passed 0"),
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
