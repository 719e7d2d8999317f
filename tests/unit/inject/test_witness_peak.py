"""The witness of a lowered rate believes only in traffic that passes below the limit and passed above it before."""

import sys
from types import SimpleNamespace

import msgspec
import pytest
from fakes import NIC, nic_request, target

from c4bench.errors import UnhealthyError
from c4bench.inject.witness import peak
from c4bench.inject.witness.base import Traffic
from c4bench.inject.witness.echo import Echoes, EchoReply

FULL_BPS = 10e9  # of the NIC in `fakes`
LIMIT_BPS = FULL_BPS / 4


class Wire:
    """An interface and its ifb device, which carry at a rate, on a clock that only sleeping moves."""

    def __init__(self):
        self.now_s = 1000.0
        self.rates = {}
        self.bytes = {}

    def sleep(self, seconds):
        self.now_s += seconds
        for key, rate_bps in self.rates.items():
            self.bytes[key] = self.bytes.get(key, 0.0) + rate_bps * seconds / 8

    def monotonic(self):
        return self.now_s - 900.0

    def time(self):
        return self.now_s

    def read(self, netdev):
        return Traffic(round(self.bytes.get((netdev, "rx"), 0)), 0, round(self.bytes.get((netdev, "tx"), 0)), 0)


@pytest.fixture
def wire(monkeypatch):
    wire = Wire()
    monkeypatch.setattr(peak, "time", wire)
    monkeypatch.setattr(peak, "Counters", lambda _: wire)
    monkeypatch.setattr(peak.interfaces, "examine", lambda _: target())
    monkeypatch.setattr(peak, "_prober", lambda _: None)
    monkeypatch.setattr(peak.interfaces, "hardware", lambda _: "rxe")
    return wire


def witness_of(direction):
    return peak.PeakRate(nic_request("nic.rate", direction=direction, fraction=0.25))


@pytest.mark.parametrize(
    ("before_bps", "during_bps", "seen"),
    [
        (FULL_BPS, LIMIT_BPS, True),
        (FULL_BPS, 1.05 * LIMIT_BPS, True),
        (FULL_BPS, 1.2 * LIMIT_BPS, False),
        (FULL_BPS, FULL_BPS, False),
        (FULL_BPS, 0.0, False),
        (0.9 * LIMIT_BPS, 0.9 * LIMIT_BPS, False),
        (0.0, LIMIT_BPS, False),
    ],
)
def test_a_limit_is_seen_if_traffic_keeps_below_it_and_did_not_before(wire, before_bps, during_bps, seen):
    """Traffic above the limit, no traffic at all, and traffic that was as slow before the fault prove nothing."""
    witness = witness_of("tx")
    wire.rates = {("h5n0", "tx"): before_bps}
    assert witness.before() == {"peak_bps": pytest.approx(before_bps)}
    wire.rates = {("h5n0", "tx"): during_bps}
    evidence = witness.during(wire.now_s)
    assert evidence.values == {"peak_bps": pytest.approx(during_bps), "limit_bps": LIMIT_BPS}
    assert (evidence.observed_s is not None) == seen


def test_a_limit_is_observed_in_the_first_window_with_traffic(wire):
    """A job that pauses at first moves the time of the observation to where its traffic begins."""
    witness = witness_of("tx")
    wire.rates = {("h5n0", "tx"): FULL_BPS}
    witness.before()
    onset_s, pause_s = wire.now_s, 0.1

    def sleep(seconds):
        wire.rates = {("h5n0", "tx"): LIMIT_BPS if wire.now_s >= onset_s + pause_s else 0.0}
        Wire.sleep(wire, seconds)

    wire.sleep = sleep
    observed_s = witness.during(onset_s).observed_s
    assert onset_s + pause_s < observed_s < onset_s + pause_s + 0.05


def test_what_is_received_is_counted_behind_the_limit(wire):
    """The NIC counts received packets before they are limited: during the fault, those that leave the ifb count."""
    witness = witness_of("rx")
    wire.rates = {("h5n0", "rx"): FULL_BPS, ("h5n0", "tx"): 1.0}
    assert witness.before()["peak_bps"] == pytest.approx(FULL_BPS)
    wire.rates |= {("c4ifb7", "tx"): LIMIT_BPS}
    evidence = witness.during(wire.now_s)
    assert evidence.values["peak_bps"] == pytest.approx(LIMIT_BPS)
    assert evidence.observed_s
    assert witness.after() == ({"peak_bps": pytest.approx(FULL_BPS)}, True)


@pytest.mark.parametrize(("after_bps", "recovered"), [(FULL_BPS, True), (1.05 * LIMIT_BPS, None), (0.0, None)])
def test_only_traffic_above_the_limit_proves_recovery(wire, after_bps, recovered):
    """A job that pauses or is slow by itself leaves recovery unknown."""
    witness = witness_of("tx")
    wire.rates = {("h5n0", "tx"): after_bps}
    assert witness.after().recovered is recovered


def echoes(arrivals_s):
    return Echoes([0.0] * len(arrivals_s), [EchoReply(n, 0.0, at_s) for n, at_s in enumerate(arrivals_s)])


def test_the_rate_of_a_train_is_that_of_its_replies_after_the_burst():
    """Ten replies 1 ms apart, of which the first two come in a burst: seven gaps of 1014 bytes on the wire each."""
    (sample,) = peak.reply_rate(echoes([5.0, 5.0, *(5.001 + 0.001 * n for n in range(8))]), 1000)
    assert sample.rate_bps == pytest.approx(1014 * 8 / 0.001)
    assert sample.end_s == pytest.approx(5.008)


@pytest.mark.parametrize("arrivals_s", [[], [1.0], [2.0, 2.0, 2.0]])
def test_few_replies_have_no_rate(arrivals_s):
    """One reply, or all at the same moment, say nothing about a rate."""
    assert peak.reply_rate(echoes(arrivals_s), 1000) == []


@pytest.mark.usefixtures("wire")
def test_an_idle_fabric_is_probed_at_the_mtu(monkeypatch):
    """A train of full-size probes shows the rate where the job sends nothing."""
    asked = []

    def train(count, size_bytes):
        asked.append((count, size_bytes))
        return echoes([1e-3 * n for n in range(count)])

    monkeypatch.setattr(peak, "_prober", lambda _: SimpleNamespace(train=train))
    assert witness_of("tx").before()["peak_bps"] == pytest.approx((4200 + 14) * 8 / 1e-3)
    assert asked == [((1 << 20) // 4200, 4200)]


@pytest.mark.parametrize(("job_bps", "trains"), [(LIMIT_BPS, 0), (0.95 * LIMIT_BPS, 0), (0.5 * LIMIT_BPS, 1), (0.0, 1)])
def test_a_job_that_sends_at_the_limit_is_left_alone(wire, monkeypatch, job_bps, trains):
    """While the fault lasts only a link that has room is probed."""
    asked = []

    def train(count, size_bytes):
        asked.append(wire.now_s)
        return echoes([size_bytes * 8 / LIMIT_BPS * n for n in range(count)])

    monkeypatch.setattr(peak, "_prober", lambda _: SimpleNamespace(train=train))
    witness = witness_of("tx")
    wire.rates = {("h5n0", "tx"): FULL_BPS}
    witness.before()
    asked.clear()
    wire.rates = {("h5n0", "tx"): job_bps}
    assert witness.during(wire.now_s).observed_s is not None
    assert len(asked) == trains


@pytest.fixture
def past_the_kernel(wire, monkeypatch, tmp_path):
    """A NIC that sends data by itself, with a device that counts it; `rate` of it is what a train shows."""
    counter = tmp_path / NIC.device / "ports/1/counters/port_xmit_data"
    counter.parent.mkdir(parents=True)
    counter.write_text("0")
    monkeypatch.setattr(peak, "_INFINIBAND", tmp_path)
    monkeypatch.setattr(peak, "find_spec", lambda _: True)
    monkeypatch.setattr(peak.interfaces, "hardware", lambda _: "mlx5_core")
    asked = SimpleNamespace(rate_bps=FULL_BPS, peers=[])

    def send_train(_, peer, *_rest):
        asked.peers.append(peer)
        return SimpleNamespace(sent=[SimpleNamespace(at_s=wire.now_s)], rate_bps=asked.rate_bps)

    monkeypatch.setitem(sys.modules, "c4bench.verbs.datagram_train", SimpleNamespace(send_train=send_train))
    # What the kernel carries is a trickle.
    wire.rates = {("h5n0", "tx"): 1e3}
    return asked


def test_a_nic_that_sends_past_the_kernel_is_asked_by_its_own_datagrams(past_the_kernel):
    """The rate at which they leave for another host's NIC shows the limit, and its end; the kernel's packets do not."""
    peer = msgspec.structs.replace(NIC, host="h6", address="10.9.9.9")
    request = msgspec.structs.replace(nic_request("nic.rate", direction="tx", fraction=0.25), peers=(peer,))
    witness = peak.PeakRate(request)
    assert witness.plane == "rdma"
    assert witness.before() == {"peak_bps": FULL_BPS}
    past_the_kernel.rate_bps = LIMIT_BPS
    assert witness.during(1000.0).observed_s is not None
    past_the_kernel.rate_bps = FULL_BPS
    assert witness.during(1000.0).observed_s is None
    assert witness.after().recovered is True
    assert set(past_the_kernel.peers) == {"10.9.9.9"}


@pytest.mark.usefixtures("past_the_kernel")
@pytest.mark.parametrize("direction", ["rx", "tx"])
def test_what_cannot_be_measured_past_the_kernel_is_refused(direction):
    """Nobody sends to the NIC, and without another host's NIC it has nobody to send to."""
    with pytest.raises(UnhealthyError, match="kernel does not carry"):
        witness_of(direction)
