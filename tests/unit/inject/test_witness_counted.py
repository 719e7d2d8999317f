"""Counters of a NIC that sends by itself stand beside what its witness saw, and prove nothing."""

import msgspec
import pytest
from fakes import NIC, nic_request

from c4bench.inject import interfaces
from c4bench.inject.witness import counted
from c4bench.inject.witness.base import RDMA, Compared
from c4bench.verbs import counters

PORT = "infiniband/mlx5_0/ports/1/hw_counters"


@pytest.fixture
def hardware(tmp_path, monkeypatch):
    """A NIC's counters: of its device as files, of its interface as the driver gives them."""
    (tmp_path / PORT).mkdir(parents=True)
    ethernet = {"rx_discards_phy": 2}

    def count(**values):
        for name, value in values.items():
            if name in counters.PORT_TROUBLES:
                ethernet[name] = value
            else:
                (tmp_path / PORT / name).write_text(f"{value}\n")

    count(packet_seq_err=3, rx_write_requests=5)
    monkeypatch.setattr(counters.hardware_counters, "__defaults__", (1, tmp_path))
    monkeypatch.setattr(counters.DriverStatistics, "read", lambda _: dict(ethernet))
    return count


def request():
    return msgspec.structs.replace(nic_request("nic.qos"), nic=msgspec.structs.replace(NIC, device="mlx5_0"))


def test_what_has_grown_is_reported_and_changes_no_verdict(hardware, monkeypatch):
    """A witness that sees nothing still sees nothing; traffic, and what stands still, is left out."""
    monkeypatch.setattr(interfaces, "hardware", lambda _: "mlx5_core")
    for seen in (7.0, None):
        plain = Compared(lambda: 1.0, lambda value: {"x": value}, lambda *_, at=seen: at, lambda *_: True, RDMA)
        witness = counted.beside(plain, request())
        assert witness.plane == RDMA
        assert witness.before() == {"x": 1.0}
        hardware(packet_seq_err=8, rx_write_requests=9, roce_adp_retrans=4, rx_discards_phy=2 if seen else 12)
        evidence = witness.during(0.0)
        assert evidence.observed_s == seen
        lost = {} if seen else {"counted_rx_discards_phy": 10.0}
        grown = {"counted_packet_seq_err": 5.0, "counted_roce_adp_retrans": 4.0} if seen else {}
        assert evidence.values == {"x": 1.0} | grown | lost
        assert witness.after() == ({"x": 1.0}, True)


@pytest.mark.parametrize("kind", ["rxe", "ethernet"])
def test_where_the_kernel_sends_there_is_nothing_beside(monkeypatch, kind):
    """The lab's own NICs have the witness alone; so has what is no NIC."""
    monkeypatch.setattr(interfaces, "hardware", lambda _: kind)
    plain = object()
    assert counted.beside(plain, request()) is plain
    assert counted.beside(plain, msgspec.structs.replace(request(), nic=None, port="up1")) is plain
