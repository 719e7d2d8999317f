"""The bench of a large inventory, on a small one."""

import pytest

from c4bench.inventory import load
from c4bench.record import RunDirectory
from tools.bench.fleet import measure, write_inventory


@pytest.mark.nightly
def test_a_fleet_is_looked_at_planned_for_and_reported_on(tmp_path):
    """Every part takes time, every host is in the report, and the memory is that of a process."""
    reading = measure(12, tmp_path)
    assert reading.hosts == 12
    assert min(reading.doctor_s, reading.inventory_s, reading.plan_s, reading.report_s) > 0
    assert 0 < reading.doctor_own_cpu_s < reading.doctor_hosts_cpu_s
    assert reading.peak_bytes > 10 << 20
    taken = RunDirectory(tmp_path / "run").measurements()
    assert [one.labels["host"] for one in taken] == [f"gpu{number:03}" for number in range(12)]
    assert (tmp_path / "run/report.html").exists()


def test_256_hosts_have_256_addresses(tmp_path):
    """None is asked in another's place."""
    hosts = load(write_inventory(256, tmp_path)).hosts
    assert len({host.nics[0].address for host in hosts}) == 256
