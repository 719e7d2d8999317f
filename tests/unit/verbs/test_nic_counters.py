"""Counters from a sysfs tree, from the IP layer and from drivers of network interfaces."""

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from c4bench.model.telemetry import NicRecord
from c4bench.verbs.counters import (
    DriverStatistics,
    PortReader,
    PortStatistics,
    difference,
    hardware_counters,
    nic_record,
    port_counters,
)


def fill(folder, **values):
    folder.mkdir(parents=True)
    for name, value in values.items():
        (folder / name).write_text(f"{value}\n")


def counted(*counts, **named):
    """The record of a NIC whose port is up."""
    return NicRecord("h0/0", "linkup", *counts, **named)


def test_counters_are_read_by_name(tmp_path):
    """Port and device counters are read; the cache's lifespan and what is no number are left out."""
    port = tmp_path / "infiniband" / "rxe0" / "ports" / "1"
    fill(port / "hw_counters", sent_pkts=5, lifespan=10, odd="N/A")
    fill(port / "counters", port_xmit_data=9)
    fill(tmp_path / "infiniband" / "rxe0" / "hw_counters", resets=1)
    assert hardware_counters("rxe0", sysfs=tmp_path) == {"sent_pkts": 5, "resets": 1}
    assert port_counters("rxe0", sysfs=tmp_path) == {"port_xmit_data": 9}


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
            counted(retransmits=3, out_of_sequence=4, duplicates=3, cnp_sent=5, cnp_received=7, ecn_marked=8),
            id="mlx5",
        ),
        pytest.param(
            {"completer_retry_err": 2, "out_of_seq_request": 0, "rcvd_seq_err": 1, "sent_pkts": 99},
            counted(2, 0, None, cnp_sent=None, cnp_received=None, ecn_marked=None),
            id="rxe",
        ),
        pytest.param(
            {
                "to_retransmits": 1,
                "seq_err_naks_rcvd": 2,
                "oos_drop_count": 3,
                "dup_req": 4,
                "tx_cnp_pkts": 5,
                "rx_cnp_pkts": 6,
                "rx_ecn_marked_pkts": 7,
            },
            counted(3, 3, 4, cnp_sent=5, cnp_received=6, ecn_marked=7),
            id="bnxt_re",
        ),
        pytest.param(
            {"cnpSent": 5, "cnpHandled": 6, "cnpIgnored": 1, "RxECNMrkd": 8},
            counted(cnp_sent=5, cnp_received=7, ecn_marked=8),
            id="irdma",
        ),
        pytest.param({"rx_bytes": 1}, counted(), id="unknown"),
    ],
)
def test_congestion_has_one_name_for_all_drivers(tmp_path, counters, expected):
    """Drivers' own counters, read from their trees, become one record; what a NIC does not count is None, not 0."""
    fill(tmp_path / "infiniband" / "nic0" / "ports" / "1" / "hw_counters", **counters)
    assert nic_record("h0/0", "linkup", hardware_counters("nic0", sysfs=tmp_path)) == expected


RECORDED = Path(__file__).parent / "recorded"


def recorded_counters():
    """What `rdma statistic` and `ethtool -S` print of a ConnectX-6, by name."""
    words = (RECORDED / "rdma_statistic_connectx6.txt").read_text().split()[2:]
    lines = (RECORDED / "ethtool_statistics_connectx6.txt").read_text().splitlines()[1:]
    rows = (line.split(": ") for line in lines)
    return {name: int(count) for name, count in pairwise(words) if count.isdigit()} | {
        name.strip(): int(count) for name, count in rows
    }


def test_a_connectx_counts_as_retransmissions_what_it_repeats_early():
    """Repeats before the timer count, and CNPs that the NIC has counted for them do not: others sent 10 - 8."""
    counters = recorded_counters()
    assert nic_record("h0/0", "linkup", counters) == counted(
        retransmits=4 + 3 + 0 + 5,
        out_of_sequence=6,
        duplicates=2,
        cnp_sent=1,
        cnp_received=10 + 0 - 8,
        ecn_marked=2,
        pause_sent=20,
        pause_received=1402,
        pause_sent_us=61,
        pause_received_us=88110,
    )
    # A dead peer on a direct link: nobody sends CNPs.
    dead = nic_record("h0/0", "linkup", counters | {"rp_cnp_handled": 8, "np_cnp_sent": 0})
    assert (dead.retransmits, dead.cnp_received) == (12, 0)
    without = {name: count for name, count in counters.items() if not name.startswith("rp_cnp")}
    assert nic_record("h0/0", "linkup", without).cnp_received is None


def test_an_agent_reads_the_files_of_all_these_counters(tmp_path):
    """Those that are added and those that are taken away are read from sysfs alike."""
    port = tmp_path / "infiniband" / "mlx5_0" / "ports" / "1"
    fill(port, phys_state="5: LinkUp")
    fill(port / "hw_counters", rp_cnp_handled=10, roce_slow_restart_cnps=8, roce_adp_retrans=5, local_ack_timeout_err=4)
    gauge = PortReader("h0/0", "mlx5_0", sysfs=tmp_path)
    assert gauge.read() == counted(retransmits=9, cnp_received=2)
    gauge.close()


def test_a_gauge_follows_a_port_that_goes_and_comes_back(tmp_path):
    """State and counters are those of the moment; a device that is not there has neither, until it is back."""
    port = tmp_path / "infiniband" / "rxe0" / "ports" / "1"
    gauge = PortReader("h0/0", "rxe0", sysfs=tmp_path)
    assert gauge.read() == NicRecord("h0/0", "")
    fill(port, phys_state="5: LinkUp")
    fill(port / "hw_counters", completer_retry_err=1, out_of_seq_request=2, duplicate_request=3, sent_pkts=9)
    assert gauge.read() == counted(1, 2, 3)
    (port / "phys_state").write_text("3: Disabled\n")
    (port / "hw_counters" / "duplicate_request").write_text("4\n")
    assert gauge.read() == NicRecord("h0/0", "disabled", 1, 2, 4)
    gauge.close()


NETSTAT = """TcpExt: SyncookiesSent InCEPkts2
TcpExt: 4 9
IpExt: InNoRoutes InNoECTPkts InCEPkts
IpExt: 1 2 {}
"""


def test_marked_packets_of_rxe_are_those_of_its_hosts_ip_layer(tmp_path):
    """A host's only rxe device has what IP received with a mark; one of several, and a device of hardware, has None."""
    port, netstat = tmp_path / "infiniband" / "rxe0" / "ports" / "1", tmp_path / "netstat"
    fill(port, phys_state="5: LinkUp")
    netstat.write_text(NETSTAT.format(7))
    alone, beside = (
        PortReader("h0/0", "rxe0", alone=alone, sysfs=tmp_path, netstat=netstat) for alone in (True, False)
    )
    assert alone.read().ecn_marked is None
    alone.close()
    (port.parents[1] / "parent").write_text("eth0\n")
    assert (alone.read().ecn_marked, beside.read().ecn_marked) == (7, None)
    netstat.write_text(NETSTAT.format(8))
    assert alone.read().ecn_marked == 8


@pytest.mark.parametrize(
    ("counters", "expected"),
    [
        pytest.param(
            {
                "tx_prio0_pause": 1,
                "tx_prio3_pause": 2,
                "tx_prio3_pause_duration": 30,
                "rx_prio3_pause": 4,
                "rx_prio3_pause_duration": 50,
                "tx_pause_storm_error_events": 9,
            },
            counted(pause_sent=3, pause_received=4, pause_sent_us=30, pause_received_us=50),
            id="mlx5 with PFC",
        ),
        pytest.param(
            {"tx_global_pause": 1, "tx_global_pause_duration": 2, "rx_global_pause": 0, "rx_global_pause_duration": 0},
            counted(pause_sent=1, pause_received=0, pause_sent_us=2, pause_received_us=0),
            id="mlx5 with pause of the link",
        ),
        pytest.param(
            {
                "tx_pause_frames": 0,
                "tx_pfc_ena_frames_pri3": 5,
                "pfc_pri3_tx_duration_us": 60,
                "rx_pfc_ena_frames_pri7": 1,
                "pfc_pri7_rx_duration_us": 2,
            },
            counted(pause_sent=5, pause_received=1, pause_sent_us=60, pause_received_us=2),
            id="bnxt_en",
        ),
        pytest.param(
            {
                "tx_priority_3_xoff.nic": 5,
                "tx_priority_3_xon.nic": 5,
                "rx_priority_0_xoff.nic": 1,
                "link_xoff_rx.nic": 2,
            },
            counted(pause_sent=5, pause_received=3),
            id="ice",
        ),
    ],
)
def test_pause_frames_of_all_priorities_are_one_counter(counters, expected):
    """Frames and the time that they stopped a side are added over priorities; ice counts no times, so they are None."""
    assert nic_record("h0/0", "linkup", counters) == expected


VETH = """
import socket
from c4bench.verbs.counters import DriverStatistics
values = [DriverStatistics(name, frozenset({"peer_ifindex"})).read() for name in ("va", "lo", "nothing")]
assert values == [{"peer_ifindex": socket.if_nametoindex("vb")}, {}, {}], values
"""


def test_a_driver_is_asked_for_its_own_statistics():
    """A veth device has the statistics that `ethtool -S` prints; an interface without any, or none at all, has none."""
    script = 'ip link add va type veth peer name vb || exit 9; exec "$0" -c "$1"'
    command = ["unshare", "--user", "--map-root-user", "--net", "sh", "-c", script, sys.executable, VETH]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 9 or "unshare" in done.stderr:
        pytest.skip("unsupported: this machine allows no user namespaces, or no veth devices in them")
    assert done.returncode == 0, done.stderr


def test_drivers_are_asked_seldom_and_never_for_what_they_lack(monkeypatch):
    """Within a fifth of a second the same values hold; then those of two ports of a bond are read again, and added."""
    asked, now_s = [], [5.0]
    count = {"a": {"tx_prio3_pause": 1}, "b": {"tx_prio3_pause": 2}, "c": {}}

    def read(driver):
        asked.append(driver._netdev)
        return count[driver._netdev]

    monkeypatch.setattr(DriverStatistics, "read", read)
    monkeypatch.setattr("c4bench.verbs.counters.time.monotonic", lambda: now_s[0])
    port = PortStatistics(("a", "b", "c"), frozenset())
    assert [port.read(), port.read()] == [{"tx_prio3_pause": 3}] * 2
    assert asked == ["a", "b", "c"]
    count["a"], now_s[0] = {"tx_prio3_pause": 4}, 5.5
    assert port.read() == {"tx_prio3_pause": 6}
    assert asked == ["a", "b", "c", "a", "b"]
