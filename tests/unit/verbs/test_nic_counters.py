"""Counters from a sysfs tree."""

import pytest

from c4bench.verbs.counters import (
    Congestion,
    congestion,
    difference,
    hardware_counters,
    netdev_statistics,
    port_counters,
)
from c4bench.verbs.port_reader import PortReader


def fill(folder, **values):
    folder.mkdir(parents=True)
    for name, value in values.items():
        (folder / name).write_text(f"{value}\n")


def test_counters_are_read_by_name(tmp_path):
    """Port, device and netdev counters are read; the cache's lifespan and what is no number are left out."""
    port = tmp_path / "infiniband" / "rxe0" / "ports" / "1"
    fill(port / "hw_counters", sent_pkts=5, lifespan=10, odd="N/A")
    fill(port / "counters", port_xmit_data=9)
    fill(tmp_path / "infiniband" / "rxe0" / "hw_counters", resets=1)
    fill(tmp_path / "net" / "eth0" / "statistics", tx_bytes=7)
    assert hardware_counters("rxe0", sysfs=tmp_path) == {"sent_pkts": 5, "resets": 1}
    assert port_counters("rxe0", sysfs=tmp_path) == {"port_xmit_data": 9}
    assert netdev_statistics("eth0", tmp_path) == {"tx_bytes": 7}


def test_absent_devices_have_no_counters(tmp_path):
    """A device or driver without counters gives an empty result."""
    assert hardware_counters("mlx5_0", sysfs=tmp_path) == {}


def test_difference_keeps_what_changed():
    """Only counters that moved are kept, new ones from zero."""
    assert difference({"a": 1, "b": 2}, {"a": 1, "b": 5, "c": 3}) == {"b": 3, "c": 3}


@pytest.mark.parametrize(
    ("counters", "expected"),
    [
        pytest.param(
            {
                "local_ack_timeout_err": 1,
                "packet_seq_err": 2,
                "implied_nak_seq_err": 0,
                "out_of_sequence": 4,
                "duplicate_request": 3,
                "np_cnp_sent": 5,
                "rp_cnp_handled": 6,
                "rp_cnp_ignored": 1,
                "np_ecn_marked_roce_packets": 8,
                "rx_write_requests": 99,
            },
            Congestion(retransmits=3, out_of_sequence=4, duplicates=3, cnp_sent=5, cnp_received=7, ecn_marked=8),
            id="mlx5",
        ),
        pytest.param(
            {"completer_retry_err": 2, "out_of_seq_request": 0, "rcvd_seq_err": 1, "sent_pkts": 99},
            Congestion(2, 0, None, cnp_sent=None, cnp_received=None, ecn_marked=None),
            id="rxe",
        ),
        pytest.param({"rx_bytes": 1}, Congestion(None, None, None, None, None, None), id="unknown"),
    ],
)
def test_congestion_has_one_name_for_all_drivers(tmp_path, counters, expected):
    """Drivers' own counters, read from their trees, become one record; what a NIC does not count is None, not 0."""
    fill(tmp_path / "infiniband" / "nic0" / "ports" / "1" / "hw_counters", **counters)
    assert congestion(hardware_counters("nic0", sysfs=tmp_path)) == expected


def test_a_gauge_follows_a_port_that_goes_and_comes_back(tmp_path):
    """State and counters are those of the moment; a device that is not there has neither, until it is back."""
    port = tmp_path / "infiniband" / "rxe0" / "ports" / "1"
    gauge = PortReader("rxe0", sysfs=tmp_path)
    assert gauge.read() == ("", congestion({}))
    fill(port, phys_state="5: LinkUp")
    fill(port / "hw_counters", completer_retry_err=1, out_of_seq_request=2, duplicate_request=3, sent_pkts=9)
    state, counted = gauge.read()
    assert (state, counted.retransmits, counted.out_of_sequence, counted.duplicates) == ("linkup", 1, 2, 3)
    (port / "phys_state").write_text("3: Disabled\n")
    (port / "hw_counters" / "duplicate_request").write_text("4\n")
    state, counted = gauge.read()
    assert (state, counted.duplicates) == ("disabled", 4)
    gauge.close()
