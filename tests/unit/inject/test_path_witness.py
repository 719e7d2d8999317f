"""Witnesses on the data's path see what happens to packets between hosts and nothing else, and decide beside others."""

import msgspec
import pytest
from fakes import NIC
from test_fault_controller import APPLIED, HEALED, HOST, ScriptedHost

from c4bench.errors import InconclusiveError, UnhealthyError
from c4bench.inject import catalogue, path_witness
from c4bench.inject.controller import Injector
from c4bench.inject.path_witness import Crossing
from c4bench.inject.places import Place
from c4bench.model.fault import FaultRequest, WitnessReport

CATALOGUE = catalogue.load()
PEER = msgspec.structs.replace(NIC, host="h6", address="10.0.0.6")
CROSSING = Crossing(NIC, PEER, 0xC123, rate_bps=10e9)
GBIT_S = 1e9


class Fabric:
    """Both consoles of a path, whose packets fare as the fields say."""

    def __init__(self):
        self.lost, self.bps, self.acknowledges = lambda _: False, 10e9, True
        self.ports, self.arrived = [], []

    def near(self, do, **asked):
        match do:
            case "connect":
                self.ports.append(asked["source_port"])
            case "stream":
                numbers = range(1, asked["count"] + 1)
                self.arrived = [number for number in numbers if not self.lost(number)]
                completed = asked["count"] if self.acknowledges else 0
                return {"sent_s": [100.0 + number for number in numbers], "completed": completed}
            case "time_writes" if not self.bps:
                raise UnhealthyError("h5/0: RETRY_EXC_ERR")
            case "time_writes":
                return [[200.0 + number, 8 * (1 << 20) / self.bps] for number in range(asked["times"])]
        return "near end"

    def far(self, do, **asked):
        match do:
            case "connect":
                self.ports.append(asked["source_port"])
            case "arrived":
                return self.arrived
        return "far end"


@pytest.fixture
def fabric():
    return Fabric()


def watch(name, fabric, crossing=CROSSING, **parameters):
    request = FaultRequest(name, "leaf0", port="up0", parameters=parameters)
    spec, request = CATALOGUE.resolve(request)
    return path_witness.watch(spec, request, fabric, crossing)


def one_in(share):
    return lambda number: number % share == 0


@pytest.mark.parametrize(
    ("lost", "observed_s"),
    [(one_in(50), 150.0), (lambda _: False, None), (lambda _: True, None), (one_in(10), None)],
)
def test_a_loss_is_seen_that_fits_its_probability(fabric, lost, observed_s):
    """From the first lost message on; neither none nor far too many are evidence of one in fifty."""
    witness = watch("link.loss", fabric, probability=0.02)
    assert witness.before() == {"path_sent": 1000.0, "path_lost": 0.0}
    fabric.lost = lost
    assert witness.during(0.0).observed_s == observed_s
    fabric.lost = lambda _: False
    assert witness.after().recovered
    assert fabric.ports == [0xC123, 0] * 3


def test_a_black_hole_lasts_until_messages_arrive(fabric):
    """All are lost while it is in force, and it is over when they arrive again."""
    witness = watch("link.blackhole", fabric)
    witness.before()
    fabric.lost = lambda _: True
    assert witness.during(0.0).observed_s == 101.0
    assert not witness.after().recovered


@pytest.mark.parametrize(("before", "during", "seen"), [(10, 2.5, True), (10, 5, False), (2, 2, False), (10, 0, False)])
def test_a_rate_is_seen_below_the_limit_only(fabric, before, during, seen):
    """A path that was as slow before proves nothing, and so does one that is faster than the limit."""
    witness = watch("link.rate", fabric, fraction=0.25)
    fabric.bps = before * GBIT_S
    witness.before()
    fabric.bps = during * GBIT_S
    assert (witness.during(0.0).observed_s == 200.0) is seen
    fabric.bps = 10 * GBIT_S
    assert witness.after().recovered


def test_lost_acknowledgements_are_told_from_lost_data(fabric):
    """Data that arrives and is not acknowledged is one fault; data that does not arrive is another."""
    crossing = CROSSING.acknowledging
    assert (crossing.source, crossing.source_port, crossing.back_port) == (PEER, 0, 0xC123)
    witness = watch("link.acks_lost", fabric, crossing)
    witness.before()
    fabric.acknowledges, fabric.lost = False, lambda _: True
    assert witness.during(0.0).observed_s is None
    fabric.lost = lambda _: False
    assert witness.during(0.0).observed_s == 101.0
    fabric.acknowledges = True
    assert witness.after().recovered


class TestBesideAnother:
    """What the path shows decides; what the target's own witness has measured is reported beside it."""

    @pytest.fixture
    def apply(self, fabric, monkeypatch):
        fabric.close = lambda: None
        monkeypatch.setattr(path_witness, "HostConsoles", lambda *_: fabric)

        def applied(own, crossing=CROSSING):
            reply = msgspec.structs.replace(APPLIED, witness=own)
            host = ScriptedHost(reply, HEALED)
            injector = Injector(lambda _: host, lambda _: "python", crossings=lambda _: crossing)
            return injector.apply_at("link.blackhole", Place(HOST, port="up0"))

        return applied

    def test_data_that_is_not_lost_proves_nothing(self, apply):
        """Echo requests of the kernel are lost, and data arrives: not seen, on the plane of RDMA."""
        own = WitnessReport(True, 10.5, {"lost": 0.0}, {"lost": 40.0}, "ip")
        with pytest.raises(InconclusiveError, match="on the rdma plane"), apply(own):
            pass

    def test_data_that_is_lost_is_evidence(self, apply, fabric):
        """Nothing of the kernel's is lost, and data is; the values of both are reported."""
        own = WitnessReport(False, None, {"lost": 0.0}, {"lost": 0.0}, "ip")
        losing = iter([False, True, False])
        stream = fabric.near

        def near(do, **asked):
            if do == "stream":
                hurt = next(losing)
                fabric.lost = lambda _: hurt
            return stream(do, **asked)

        fabric.near = near
        with apply(own) as fault:
            assert (fault.witness.seen, fault.witness.plane) == (True, "rdma")
            assert fault.witness.during == {"lost": 0.0, "path_sent": 40.0, "path_lost": 40.0}

    def test_a_path_that_nobody_knows_leaves_the_other(self, apply):
        """Without a crossing the witness at the target decides, and its plane is reported."""
        own = WitnessReport(True, 10.5, {}, {"lost": 40.0}, "ip")
        with apply(own, None) as fault:
            assert fault.witness.plane == "ip"


def test_a_console_that_fails_says_why():
    """An error of one end, and an answer that is none, are one line with the NIC's name."""
    session = ScriptedHost()
    answers = iter(['{"error": "no GID"}', "Traceback"])
    session.read_line = lambda _: next(answers)
    consoles = path_witness.HostConsoles(CROSSING, lambda _: session, lambda _: "python")
    assert session.argv[:3] == ["python", "-m", "c4bench.verbs.endpoint_console"]
    with pytest.raises(UnhealthyError, match="h5/0: no GID"):
        consoles.near("open")
    with pytest.raises(UnhealthyError, match="h6/0: the console of a queue pair printed no answer"):
        consoles.far("open")
    consoles.close()
    assert session.closed
