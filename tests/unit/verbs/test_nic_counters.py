"""Counters from a sysfs tree."""

from c4bench.verbs.counters import difference, hardware_counters, netdev_statistics, port_counters


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
