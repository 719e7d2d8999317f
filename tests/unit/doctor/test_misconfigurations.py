"""Misconfigurations are found in drawn fabrics, where they are, with the fix; a healthy fabric has none."""

import random

import pytest
from saved_fabric import drawn, save

from c4bench.doctor.facts import Mark
from c4bench.doctor.files import judge_files
from c4bench.doctor.misconfigurations import judge
from c4bench.doctor.settings import Device, NicSettings, PortSettings
from c4bench.inject import catalogue

DRAWS = 10


def ports(fabric, draw):
    """A port of a switch, or all of one switch: (device, port, what is set) each."""
    switch = draw.choice(sorted(fabric.switches))
    every = fabric.switches[switch]
    return [(switch, port.name, port) for port in (every if draw.random() < 0.3 else [draw.choice(every)])]


def nic(fabric, draw):
    host = draw.choice(sorted(fabric.hosts))
    one = draw.choice(fabric.hosts[host])
    return [(host, one.netdev, one)]


def either(fabric, draw):
    return draw.choice([ports, nic])(fabric, draw)


def pfc_off(fabric, draw):
    places, value = either(fabric, draw), draw.choice([set(), {6}])  # off, or on at another priority
    for *_, one in places:
        one.pfc = value
    return places


def ecn_off(fabric, draw):
    places = ports(fabric, draw)
    for *_, port in places:
        port.marks = {}
    return places


def ecn_thresholds(fabric, draw):
    places, factor = ports(fabric, draw), draw.choice([0.1, 0.5, 3, 10])
    for *_, port in places:
        low, high, percent = port.marks[fabric.priority]
        port.marks = {fabric.priority: (int(low * factor), int(high * factor), percent)}
    return places


def dscp_map(fabric, draw):
    places = either(fabric, draw) if fabric.system != "eos" else nic(fabric, draw)
    wrong = draw.choice([number for number in range(7) if number != fabric.priority])
    for *_, one in places:
        one.map[fabric.dscp] = wrong
    return places


def mtu(fabric, draw):
    places, value = either(fabric, draw), draw.choice([1500, 2048, 4096])
    for *_, one in places:
        one.mtu = value
    return places


def watchdog_off(fabric, draw):
    places = ports(fabric, draw)
    for *_, port in places:
        port.watchdog = False
    return places


def adaptive_routing(fabric, draw):
    places = ports(fabric, draw)
    for *_, port in places:
        port.adaptive = True
    return places


def trust(fabric, draw):
    places = nic(fabric, draw)
    places[0][2].trust = "pcp"
    return places


def traffic_class(fabric, draw):
    for one in (one for nics in fabric.hosts.values() for one in nics):
        one.traffic_class = fabric.dscp << 2 | 2
    places = nic(fabric, draw)
    places[0][2].traffic_class = draw.choice([tc for tc in (0, 32, 96, 184) if tc >> 2 != fabric.dscp])
    return places


def dcqcn(fabric, draw):
    places = nic(fabric, draw)
    places[0][2].dcqcn[draw.choice(["np", "rp"])].discard(fabric.priority)
    return places


def gid(fabric, draw):
    places = nic(fabric, draw)
    places[0][2].gid_index = draw.choice([None, 5, 7])
    return places


MADE = {made.__name__: made for made in
        (pfc_off, ecn_off, ecn_thresholds, dscp_map, mtu, watchdog_off, adaptive_routing, trust, traffic_class, dcqcn,
         gid)}  # fmt: skip
ON_SYSTEM = {"adaptive_routing": "nvue"}  # of which ports have it one by one


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
    """In 10 of 10 draws of the fabric, the place and the wrong value: it alone is named, with a fix."""
    for number in range(DRAWS):
        draw = random.Random(f"{rule} {number}")
        fabric = drawn(draw.randrange(1 << 30), ON_SYSTEM.get(rule, ""))
        places = MADE[rule](fabric, draw)
        save(fabric, tmp_path / str(number))
        found = bad(tmp_path / str(number))
        assert sorted(one[:3] for one in found) == sorted((*where, rule) for *where, _ in places), (number, found)
        assert all(fix for *_, fix in found), found


def test_every_wrong_setting_of_the_catalogue_is_drawn():
    """A fault whose file says which rule must find it is drawn here by that rule."""
    rules = {spec.doctor.value for spec in catalogue.load().specs.values() if spec.doctor}
    assert {"pfc_off", "mtu", "gid"} <= rules <= MADE.keys()


@pytest.mark.parametrize(("stated", "wrong"), [({}, 0), ({26: 3}, 2), ({26: 0}, 2)])
def test_a_priority_that_the_inventory_states_counts_where_all_agree_on_another(stated, wrong):
    """All give DSCP 26 priority 0 and pause 3: by what is stated either the maps are wrong, or PFC is."""
    wire = NicSettings("eth1", priorities=(0,) * 64, pfc=(3,)), PortSettings("p0", priorities=(0,) * 64, pfc=(3,))
    devices = [Device("h0", nics=wire[:1]), Device("leaf0", ports=wire[1:], system="sonic")]
    found = judge(devices, {26}, stated).remarks
    texts = [remark.text for of in found.values() for remark in of]
    said = [text for text in texts if "facts of the inventory" in text]
    assert len(said) == wrong, texts
