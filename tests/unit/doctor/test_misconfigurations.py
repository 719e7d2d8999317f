"""Misconfigurations are found in drawn fabrics, where they are, with the fix; a healthy fabric has none."""

import random

import pytest
from saved_fabric import drawn, save

from c4bench.doctor.facts import Mark
from c4bench.doctor.files import judge_files

DRAWS = 10


def _port(fabric, draw):
    switch = draw.choice(sorted(fabric.switches))
    port = draw.choice(fabric.switches[switch])
    return switch, port.name, port


def _nic(fabric, draw):
    host = draw.choice(sorted(fabric.hosts))
    nic = draw.choice(fabric.hosts[host])
    return host, nic.netdev, nic


def pfc_off(fabric, draw):
    *where, one = draw.choice([_port, _nic])(fabric, draw)
    one.pfc = draw.choice([set(), {6}])
    return where


def ecn_off(fabric, draw):
    *where, port = _port(fabric, draw)
    port.marks = {}
    return where


def ecn_thresholds(fabric, draw):
    *where, port = _port(fabric, draw)
    low, high, percent = port.marks[fabric.priority]
    factor = draw.choice([0.1, 0.5, 3, 10])
    port.marks = {fabric.priority: (int(low * factor), int(high * factor), percent)}
    return where


def dscp_map(fabric, draw):
    *where, one = draw.choice([_port, _nic])(fabric, draw)
    one.map[fabric.dscp] = draw.choice([number for number in range(7) if number != fabric.priority])
    return where


def mtu(fabric, draw):
    *where, one = draw.choice([_port, _nic])(fabric, draw)
    one.mtu = draw.choice([1500, 2048, 4096])
    return where


def watchdog_off(fabric, draw):
    *where, port = _port(fabric, draw)
    port.watchdog = False
    return where


def trust(fabric, draw):
    *where, nic = _nic(fabric, draw)
    nic.trust = "pcp"
    return where


def traffic_class(fabric, draw):
    for nics in fabric.hosts.values():
        for nic in nics:
            nic.traffic_class = fabric.dscp << 2 | 2
    *where, nic = _nic(fabric, draw)
    nic.traffic_class = draw.choice([tc for tc in (0, 32, 96, 184) if tc >> 2 != fabric.dscp])
    return where


def dcqcn(fabric, draw):
    *where, nic = _nic(fabric, draw)
    nic.dcqcn[draw.choice(["np", "rp"])].discard(fabric.priority)
    return where


def gid(fabric, draw):
    *where, nic = _nic(fabric, draw)
    nic.gid_index = draw.choice([None, 5, 7])
    return where


MADE = {made.__name__: made for made in
        (pfc_off, ecn_off, ecn_thresholds, dscp_map, mtu, watchdog_off, trust, traffic_class, dcqcn, gid)}  # fmt: skip


def bad(folder):
    """What is wrong, as (device, port, rule, fix); settings that differ where nothing decides are none."""
    document = judge_files([folder])
    assert not document.unused, document.unused
    assert not document.disagreements
    return [
        (device.device, one.where, one.kind, one.advice)
        for device in document.devices
        for one in device.remarks
        if one.mark is Mark.BAD
    ]


@pytest.mark.parametrize("seed", range(DRAWS))
def test_a_healthy_fabric_has_no_misconfiguration(tmp_path, seed):
    """Whatever its size, priority, DSCP, MTU and thresholds: nothing is bad."""
    save(drawn(seed), tmp_path / "f")
    assert bad(tmp_path / "f") == []


@pytest.mark.parametrize("rule", sorted(MADE))
def test_each_misconfiguration_is_found_where_it_is(tmp_path, rule):
    """In 10 of 10 draws of the fabric, the port and the wrong value: it alone is named, with a fix."""
    for number in range(DRAWS):
        draw = random.Random(f"{rule} {number}")
        fabric = drawn(draw.randrange(1 << 30))
        device, port = MADE[rule](fabric, draw)
        save(fabric, tmp_path / str(number))
        found = bad(tmp_path / str(number))
        assert [one[:3] for one in found] == [(device, port, rule)], (number, found)
        assert found[0][3], found
