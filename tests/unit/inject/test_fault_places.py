"""Targets of faults as written on the command line."""

import pytest

from c4bench.errors import UsageError
from c4bench.inject import places
from c4bench.inject.places import parse
from c4bench.inventory import load
from c4bench.model.fabric import Host, Nic

INVENTORY = """\
all:
  hosts:
    h5: {ansible_host: 127.0.0.1, c4: {disruptive: true, nics: [{netdev: eth5}, {netdev: eth6}]}}
  children: {switches: {hosts: {leaf0: {ansible_host: 127.0.0.2, c4: {disruptive: true, netns: /run/netns/leaf0}}}}}
"""


@pytest.fixture
def inventory(tmp_path):
    """A host with two NICs, and a switch whose ports are in a namespace of their own."""
    path = tmp_path / "hosts.yml"
    path.write_text(INVENTORY)
    return load(path)


def asked(word, inventory):
    """What a request for a fault there names besides the fault."""
    request = parse(word, inventory).request("f", {"x": 1}, 2.0, 0.5, last_nic=False)
    assert (request.fault, request.parameters, request.lease_s, request.witness_s) == ("f", {"x": 1}, 2.0, 0.5)
    assert request.last_nic is False
    nic = request.nic.name if request.nic else None
    return request.host, nic, request.port, request.netns, request.gpu, request.job, request.rank


@pytest.mark.parametrize(
    ("word", "named"),
    [
        ("h5", ("h5", None, None, None, None, None, None)),
        ("h5/1", ("h5", "h5/1", None, None, None, None, None)),
        ("h5/gpu12", ("h5", None, None, None, 12, None, None)),
        ("train:12@h5", ("h5", None, None, None, None, "train", 12)),
        ("leaf0/up1", ("leaf0", None, "up1", "/run/netns/leaf0", None, None, None)),
        ("leaf0", ("leaf0", None, None, "/run/netns/leaf0", None, None, None)),
    ],
)
def test_a_target_names_one_thing(inventory, word, named):
    """A host, a NIC, a GPU, a rank, a port or a switch: the request names that and nothing else."""
    assert asked(word, inventory) == named


def test_the_request_has_all_nics_of_the_host(inventory):
    """They tell which NIC is the host's last one."""
    request = parse("h5/0", inventory).request("f", {}, 2.0, 0.5, last_nic=True)
    assert [nic.name for nic in request.nics] == ["h5/0", "h5/1"]
    assert request.last_nic is True


@pytest.mark.parametrize(
    ("word", "complaint"),
    [
        ("h6", "has no host or switch 'h6'; did you mean h5?"),
        ("zzz", "has no host or switch 'zzz'; a target is HOST/NIC"),
        ("h5/2", "its NICs: h5/0, h5/1"),
        ("h5/eth5", "'h5/eth5' is no target; write HOST/NIC"),
        ("h5/gpux", "'h5/gpux' is no target"),
        ("train:1@h6", "has no host or switch 'h6'"),
    ],
)
def test_what_the_inventory_lacks_is_refused(inventory, word, complaint):
    """One line says what is not there, and what is."""
    with pytest.raises(UsageError, match=complaint):
        parse(word, inventory)


def test_the_peers_of_a_host_are_the_next_host_of_each_of_its_planes():
    """In a ring, never its own NICs, and none where no other host is in a plane."""
    nics = {
        name: tuple(Nic(name, plane, "", "", f"10.{plane}.0.{name[1:]}", 1e9, plane=plane) for plane in planes)
        for name, planes in {"h1": (0, 1), "h2": (0,), "h3": (0, 1), "h4": (2,)}.items()
    }
    hosts = [Host(name, "", own) for name, own in nics.items()]
    peers = {host.name: [nic.name for nic in places.peers_of(host, hosts)] for host in hosts}
    assert peers == {"h1": ["h2/0", "h3/1"], "h2": ["h3/0"], "h3": ["h1/0", "h1/1"], "h4": []}
