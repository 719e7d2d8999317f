"""Witnesses by echo requests see the fault that was asked for, and neither its absence nor another one."""

import msgspec
import pytest
from fakes import NIC, nic_request, target

from c4bench.errors import UnhealthyError
from c4bench.inject import interfaces
from c4bench.inject.witness import echo
from c4bench.inject.witness.echo import Echoes, EchoReply
from c4bench.model.fabric import Nic
from c4bench.model.fault import FaultRequest, SwitchPort

GAP_S = 0.01


def train(count, round_trip_s=0.001, lost=(), order=None):
    """Probes sent every 10 ms; the replies to those that are not lost, in this order."""
    sent_s = [100 + number * GAP_S for number in range(count)]
    numbers = [number for number in order or range(count) if number not in lost]
    return Echoes(sent_s, [EchoReply(number, sent_s[number], sent_s[number] + round_trip_s) for number in numbers])


@pytest.fixture
def network(monkeypatch):
    """`answers(count, size_bytes)` is the train that a prober gets; `asked` is what was asked for."""

    class Network:
        def __init__(self):
            self.answers = lambda count, _size_bytes: train(count)
            self.asked = []

    class Prober:
        plane, most = "ip", 50_000

        def __init__(self, _target):
            """Any interface can be probed."""

        def train(self, count, size_bytes=64, gap_s=0.0):
            network.asked.append((count, size_bytes, gap_s))
            return network.answers(count, size_bytes)

    network = Network()
    monkeypatch.setattr(interfaces, "examine", lambda _interface: target())
    monkeypatch.setattr(interfaces, "hardware", lambda _interface: "rxe")
    monkeypatch.setattr(echo, "Prober", Prober)
    return network


def loss(share):
    return lambda count, _size_bytes: train(count, lost=range(round(count * share)))


def delay(round_trip_s):
    return lambda count, _size_bytes: train(count, round_trip_s)


def test_a_loss_is_seen_only_if_it_is_as_large_as_asked_for(network):
    """A tenth of the packets is asked for: none, half and all are not that fault; a tenth is, and it has to end."""
    seen = echo.echo_loss(nic_request("nic.loss", probability=0.1, direction="tx"))
    assert seen.before() == {"sent": 200, "lost": 0}
    assert network.asked == [(200, 1024, pytest.approx(0.3 / 200))]
    for share, observed_s in ((0.0, None), (0.5, None), (1.0, None), (0.1, 100.0)):
        network.answers = loss(share)
        assert seen.during(0.0).observed_s == observed_s, share
    assert seen.after().recovered is False
    network.answers = loss(0.005)
    assert seen.after().recovered is True


def test_a_loss_in_both_directions_is_larger(network):
    """A tenth of either direction is 19 of 100 round trips; what was lost before the fault is not the fault."""
    seen = echo.echo_loss(nic_request("nic.loss", probability=0.1, direction="both"))
    network.answers = loss(0.19)
    assert seen.before()["lost"] == round(0.19 * seen.before()["sent"])
    assert seen.during(0.0).observed_s is None
    network.answers = loss(0.0)
    seen.before()
    network.answers = loss(0.19)
    assert seen.during(0.0).observed_s == 100.0
    assert seen.during(0.0).values == seen.before()


@pytest.mark.parametrize(("direction", "threshold_s"), [("tx", 0.006), ("both", 0.011)])
def test_a_delay_is_seen_from_half_of_it_on(network, direction, threshold_s):
    """10 ms are asked for in one or both directions, on top of 1 ms: the median must grow by half of that."""
    seen = echo.echo_delay(nic_request("nic.delay", delay_s=0.01, direction=direction))
    assert seen.before() == {"round_trip_s": pytest.approx(0.001)}
    network.answers = delay(threshold_s - 0.0005)
    assert seen.during(0.0).observed_s is None
    assert seen.after().recovered is True
    network.answers = delay(threshold_s + 0.0005)
    assert seen.during(0.0).observed_s == 100.0
    assert seen.after().recovered is False


def test_a_few_late_probes_are_no_delay(network):
    """One probe of forty that is late does not move the median."""
    seen = echo.echo_delay(nic_request("nic.delay", delay_s=0.01, direction="tx"))
    seen.before()
    usual, late = train(40), train(40, 0.5)
    network.answers = lambda *_: Echoes(usual.sent_s, [*usual.replies[:39], late.replies[39]])
    assert seen.during(0.0).observed_s is None


def test_reordering_is_seen_when_replies_overtake(network):
    """In order there is none; probe 2 behind probe 3 is one, first seen when probe 3 arrived."""
    seen = echo.echo_order(nic_request("nic.reorder", probability=0.5, delay_s=0.01))
    assert seen.before() == {"overtaken": 0}
    assert seen.during(0.0).observed_s is None
    swapped = [0, 1, 3, 2, *range(4, 40)]
    network.answers = lambda count, _size_bytes: train(count, order=swapped)
    evidence = seen.during(0.0)
    assert evidence.values == {"overtaken": 1}
    assert evidence.observed_s == pytest.approx(100 + 3 * GAP_S + 0.001)
    assert seen.after().recovered is False
    seen.before()
    assert seen.during(0.0).observed_s is None
    assert seen.after().recovered is True


def test_a_small_mtu_stops_large_probes_only(network):
    """Only large ones lost is this fault; small ones too, or only some, is another; a sick path proves nothing."""

    def large(share, small=0.0):
        return lambda count, size_bytes: train(
            count, lost=range(round(count * (share if size_bytes == 4200 else small)))
        )

    seen = echo.echo_size(nic_request("nic.mtu", mtu_bytes=1500))
    assert seen.before() == {"small": 1.0, "full": 1.0}
    assert {size_bytes for _, size_bytes, _ in network.asked} == {64, 4200}
    for share, small, observed_s in ((0.0, 0.0, None), (0.5, 0.0, None), (1.0, 1.0, None), (1.0, 0.0, 100.0)):
        network.answers = large(share, small)
        evidence = seen.during(0.0)
        assert evidence.observed_s == observed_s, (share, small)
        assert evidence.values == {"small": pytest.approx(1 - small), "full": pytest.approx(1 - share, abs=0.1)}
        assert seen.after().recovered is (share == small == 0.0)
    seen.before()
    assert seen.during(0.0).observed_s is None


def test_a_host_is_cut_off_when_no_nic_answers(monkeypatch):
    """Two NICs: one silent is not enough, and neither are both if they were silent before."""
    silent, nics = set(), iter(range(2))

    class Prober:
        plane, most = "ip", 50_000

        def __init__(self, _target):
            self._own = next(nics)

        def train(self, count, **_):
            return train(count, lost=range(count) if self._own in silent else ())

    monkeypatch.setattr(interfaces, "examine", lambda _interface: target())
    monkeypatch.setattr(interfaces, "hardware", lambda _interface: "rxe")
    monkeypatch.setattr(echo, "Prober", Prober)
    seen = echo.nics_dead(FaultRequest("host.data_cut", "h5", nics=(NIC, NIC)))
    assert seen.before() == {"lost": 0.0}
    silent.add(0)
    assert (seen.during(0.0).values, seen.during(0.0).observed_s) == ({"lost": 0.5}, None)
    assert seen.after().recovered is False
    silent.add(1)
    assert seen.during(0.0).observed_s == 100.0
    seen.before()
    assert seen.during(0.0).observed_s is None
    assert seen.after().recovered is True


def test_overtaking_is_counted_by_reply():
    """Every reply behind one with a larger number counts, and a duplicate does not."""
    assert echo.count_overtaking(train(4)) == 0
    assert echo.count_overtaking(train(4, order=[3, 0, 1, 2])) == 3
    assert echo.count_overtaking(train(4, order=[0, 1, 1, 2, 3])) == 0
    assert echo.Echoes([1.0], []).first_lost_s == 1.0


PEER = Nic("h6", 0, "h6r0", "h6n0", "10.1.2.1", 10e9)


@pytest.fixture
def manager(monkeypatch, tmp_path):
    """A host with a connection manager; `hardware` says what its NIC is."""
    monkeypatch.setattr(echo, "CONNECTION_MANAGER", tmp_path)
    monkeypatch.setattr(interfaces, "examine", lambda _: target())

    def hardware(kind):
        monkeypatch.setattr(interfaces, "hardware", lambda _: kind)

    hardware("rxe")
    return hardware


@pytest.mark.usefixtures("manager")
def test_a_nic_with_rdma_is_probed_on_the_path_of_its_data():
    """By RDMA where a NIC of another host is in its plane, and by the kernel where the kernel carries the data."""
    other_plane = msgspec.structs.replace(PEER, plane=1)
    requests = [FaultRequest("nic.loss", "h5", NIC, peers=peers) for peers in ((PEER,), (other_plane,), ())]
    assert [echo.data_probes(NIC, request).plane for request in requests] == ["rdma", "ip", "ip"]
    port = SwitchPort("leaf0", "up1")
    assert echo.data_probes(port, requests[0]).plane == "ip"


def test_packets_of_the_kernel_say_nothing_of_a_nic_that_sends_by_itself(manager, monkeypatch, tmp_path):
    """Without another host or without the connection manager, such a NIC is not probed at all."""
    manager("mlx5_core")
    with pytest.raises(UnhealthyError, match=r"h5/0 cannot be probed .* without a NIC of another host in its plane"):
        echo.data_probes(NIC, FaultRequest("nic.loss", "h5", NIC))
    monkeypatch.setattr(echo, "CONNECTION_MANAGER", tmp_path / "none")
    with pytest.raises(UnhealthyError, match=r"without .*none \(load rdma_ucm\)"):
        echo.data_probes(NIC, FaultRequest("nic.loss", "h5", NIC, peers=(PEER,)))


@pytest.mark.parametrize(("active", "seen"), [((4096, 1024), True), ((4096, 4096), False)])
def test_a_smaller_mtu_of_the_kernel_is_not_one_of_rdma(network, monkeypatch, active, seen):
    """On a NIC that sends by itself the path MTU of its port must be smaller too."""
    monkeypatch.setattr(interfaces, "hardware", lambda _: "mlx5_core")
    sizes = iter(active)
    monkeypatch.setattr(echo, "_active_mtu_bytes", lambda _: next(sizes))
    witness = echo.echo_size(nic_request("nic.mtu", mtu_bytes=1500))
    assert witness.before()["active_bytes"] == 4096
    network.answers = lambda count, size: train(count, lost=range(count) if size > 64 else ())
    assert (witness.during(0.0).observed_s is not None) is seen
    assert witness.plane == "ip and state"
