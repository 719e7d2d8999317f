"""Cabling files of other tools become our graph: no cable more or less, no speed that the file does not state."""

import json
import string
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from property_examples import examples

from c4bench.cli.main import main
from c4bench.decoding import from_yaml
from c4bench.errors import UsageError
from c4bench.inventory import cabling
from c4bench.inventory.cabling.document import document
from c4bench.inventory.cabling.slurm import expand as hostlist
from c4bench.inventory.cabling.wiring import HOST, SWITCH, End, Wire, Wiring
from c4bench.lab import topology_file
from c4bench.lab.topology_file import GraphForm

CASES = Path(__file__).parents[2] / "evidence_fixtures/cases/14-cabling"
LEAVES = [
    (f"leaf-x{leaf}", f"swp{32 + spine}", f"spine-x{spine}", f"swp{10 + leaf}")
    for leaf in (1, 2, 3)
    for spine in (1, 2)
]
PTM = [*LEAVES, *((f"gpu-a0{n}", "eth1", f"leaf-x{(n + 1) // 2}", f"swp{18 - n % 2}") for n in range(1, 7))]
HCAS = ("gpu-n01", "gpu-n02", "gpu-n03", "gpu-n04", "02aabb0300001100", "gpu-n06")
DISCOVERED = [
    *(
        (host, "1" if host[0] == "0" else "mlx5_0/1", f"ib-leaf{number // 2 + 1}", str(11 + number % 2), 200e9)
        for number, host in enumerate(HCAS)
    ),
    *(
        (f"ib-leaf{leaf}", str(29 + 2 * spine + link), f"ib-spine{spine}", str(2 * leaf - 1 + link),
         100e9 if (leaf, spine, link) == (2, 2, 1) else 200e9)
        for leaf in (1, 2, 3) for spine in (1, 2) for link in (0, 1)
    ),
]  # fmt: skip
SLURM = [
    *((f"gpu-b{number:03}", "", rack, "") for number, rack in
      ((8, "rack1"), (9, "rack1"), (10, "rack1"), (11, "rack2"), (14, "rack2"), (15, "rack3"))),
    ("io-b1", "", "rack3", ""), ("io-b2", "", "rack3", ""),
    *((f"rack{number}", "", "core", "") for number in (1, 2, 3)),
]  # fmt: skip
CLAB = [
    *((f"lf{leaf}", f"eth{spine}", f"sp{spine}", f"eth{leaf}") for leaf in (1, 2, 3) for spine in (1, 2)),
    *((f"gpu-w{number}", "eth1", f"lf{(number + 1) // 2}", f"eth{21 - number % 2}") for number in range(1, 7)),
]
CSV = [
    *((f"tor-{tor}", f"Ethernet{208 + 16 * agg}", f"agg-{agg}", f"Ethernet{16 * (tor - 1)}", 400e9)
      for tor in (1, 2, 3) for agg in (1, 2)),
    *((f"gpu-k0{number}", "enp65s0np0", f"tor-{(number + 1) // 2}", f"Ethernet{8 - 8 * (number % 2)}", 200e9)
      for number in range(1, 7)),
    ("gpu-k06", "enp193s0np0", "tor-3", "Ethernet16", 100e9),
]  # fmt: skip


def cables(wiring):
    """Each cable with its speed, whichever end stands first."""
    return sorted((*sorted((end.node, end.port) for end in wire.ends), wire.rate_bps) for wire in wiring.wires)


def stated(rows):
    """Rows of `node, port, node, port[, bit/s]` in the form of `cables`."""
    return sorted((*sorted((row[:2], row[2:4])), row[4] if len(row) > 4 else 0.0) for row in map(tuple, rows))


@pytest.mark.parametrize(
    ("name", "rows", "hosts", "notes"),
    [
        ("fabric.dot", PTM, 6, ("states no speeds",)),
        ("ibnetdiscover.out", DISCOVERED, 6, ("02aabb0300001100", "aggregation node")),
        ("topology.conf", SLURM, 8, ("no ports, no speeds and not how many cables", "LinkSpeed")),
        ("fabric.clab.yml", CLAB, 6, ("states no speeds",)),
        ("links.csv", CSV, 6, ("does not state which nodes are hosts; by the names of their ports",)),
    ],
)
def test_every_cable_of_a_file_is_read_once(name, rows, hosts, notes):
    """The cables, ports and speeds are those listed by hand; what is not stated is said to be so."""
    wiring = cabling.with_roles(cabling.read(CASES / name))
    assert cables(wiring) == stated(rows)
    assert len(cabling.hosts_of(wiring)) == hosts
    assert all(word in "\n".join(wiring.notes) for word in notes)


def test_the_inside_of_a_host_is_no_fabric():
    """NCCL's topology file is refused with what it shows instead: the NICs next to each GPU."""
    with pytest.raises(UsageError, match=r"inside of one host and no cables.*GPU 0: mlx5_0; .*GPU 3: mlx5_3$"):
        cabling.read(CASES / "nccl_topo.xml")


@pytest.mark.parametrize("name", ["fabric.dot", "ibnetdiscover.out", "topology.conf", "fabric.clab.yml", "links.csv"])
def test_what_is_written_is_a_topology_file(name, tmp_path, capsys):
    """The command writes our YAML, which reads as the same cables; a lab takes it once rates are ones it can have."""
    out = tmp_path / "out.yml"
    words = ["topology", "import", str(CASES / name), "-o", str(out), "--rate", "200gbit", "--scale", "0.05"]
    assert main(words) == 0
    wiring = cabling.with_roles(cabling.read(CASES / name))
    form = from_yaml(out.read_bytes(), GraphForm)
    assert (form.switches, form.hosts) == (cabling.switches_of(wiring), cabling.hosts_of(wiring))
    assert form.links == cabling.cables(wiring, rate_bps=200e9, scale=0.05)
    if name != "ibnetdiscover.out":  # a host of it has a GUID for a name, which is too long for a lab
        topology = topology_file.load(str(out))
        assert len(topology.links) + len(topology.ports) == len(wiring.wires)
    assert "hosts" in capsys.readouterr().out


def test_a_cabling_file_is_accepted_where_a_topology_is(tmp_path):
    """A file with speeds that a lab can have is loaded as it is; one without says what to do."""
    fabric = tmp_path / "cables.csv"
    fabric.write_text("Device A,Port A,Device B,Port B,Speed\nleaf1,swp1,spine1,swp1,10G\n"
                      "gpu1,eth0,leaf1,swp8,25G\ngpu2,eth0,leaf1,swp9,25 Gbit/s\n")  # fmt: skip
    topology = topology_file.load(str(fabric))
    assert {(port.nic.host, port.switch, port.rate_bps) for port in topology.ports} == {
        ("gpu1", "leaf1", 25e9), ("gpu2", "leaf1", 25e9),
    }  # fmt: skip
    assert [link.rate_bps for link in topology.links] == [10e9]
    with pytest.raises(UsageError, match=r"fabric\.dot \(Graphviz\): .*its rate is 0 or not stated; .*--rate"):
        topology_file.load(str(CASES / "fabric.dot"))


def test_an_existing_file_is_no_unknown_name(tmp_path, monkeypatch):
    """A file without a known ending is read, and its error is about its content."""
    monkeypatch.chdir(tmp_path)
    Path("cables").write_text("[section]\nkey = value\n")
    with pytest.raises(UsageError, match=r"^cables"):
        topology_file.load("cables")


NAMES = st.text(string.ascii_lowercase + string.digits + ".-", min_size=1, max_size=12).map(lambda text: f"n{text}")
PORTS = st.sampled_from(["", "swp1", "Ethernet12", "1/1/1", "7"])
RATES = st.sampled_from([0.0, 2.5e9, 1e10, 1.4e10, 4e11])


@given(st.data())
@settings(max_examples=examples(20, 200), deadline=None)
def test_a_written_wiring_is_read_back(data):
    """Hosts, switches, ports of switches and rates are the same after writing and reading."""
    hosts, switches = (data.draw(st.lists(NAMES, min_size=1, max_size=5, unique=True)) for _ in range(2))
    hosts = [f"h{name}" for name in hosts]
    wires = [
        Wire(End(data.draw(st.sampled_from([*hosts, *switches])), "p0"), End(one, data.draw(PORTS)), data.draw(RATES))
        for one in switches
        for _ in range(2)
    ]
    wires = [wire for wire in wires if wire.a.node != wire.b.node]
    roles = dict.fromkeys(hosts, HOST) | dict.fromkeys(switches, SWITCH)
    wiring = Wiring("test", tuple(wires), roles)
    if not wires:
        return
    form = from_yaml(document(wiring, "made/up.txt"), GraphForm)
    assert form.links == cabling.cables(wiring)
    assert {*form.hosts, *form.switches} == set(wiring.nodes)
    assert set(form.hosts) <= set(hosts)


def terminations(kind, a, b):
    """A cable as NetBox's API lists it."""
    ends = [
        [{"object_type": f"dcim.{kind}", "object": {"name": port, "device": {"name": device}}}]
        for device, port in (a, b)
    ]
    return {"id": 7, "a_terminations": ends[0], "b_terminations": ends[1]}


def peers(hostname, ifname, peer_hostname, peer_ifname):
    """A neighbour as NetQ lists it."""
    return {"hostname": hostname, "ifname": ifname, "peerHostname": peer_hostname, "peerIfname": peer_ifname}


NETBOX = {
    "count": 2,
    "results": [
        terminations("interface", ("gpu-1", "eth2"), ("leaf-1", "swp3")),
        terminations("powerport", ("gpu-1", "PSU0"), ("pdu-1", "4")),
    ],
}
NETQ = {
    "lldp": [
        peers("leaf-1", "swp51", "spine-1", "swp1"),
        peers("spine-1", "swp1", "leaf-1", "swp51"),
        peers("leaf-1", "swp3", "gpu-1", "eth2"),
    ]
}
SLURM_YAML = """\
---
- topology: default
  cluster_default: true
  tree:
    switches:
      - switch: root
        children: s[1-2]
      - switch: s1
        nodes: gpu[01-02]
      - switch: s2
        nodes: gpu[03]
"""
TWO_HCAS = """\
vendid=0x2c9
Switch	64 "S-00000000000000a1"		# "MF0;director:CS8500/L01/U1" enhanced port 0 lid 7 lmc 0
[1]	"H-00000000000000b1"[1](b1) 		# "gpu1 mlx5_0" lid 21 4xNDR
[2]	"H-00000000000000b2"[1](b2) 		# "gpu1 mlx5_1" lid 22 4xNDR
[3]	"S-00000000000000a2"[5]		# "MF0;director:CS8500/S01/U1" lid 9 2xNDR
Switch	64 "S-00000000000000a2"		# "MF0;director:CS8500/S01/U1" enhanced port 0 lid 9 lmc 0
[5]	"S-00000000000000a1"[3]		# "MF0;director:CS8500/L01/U1" lid 7 2xNDR
"""


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        (json.dumps(NETBOX), [("gpu-1", "eth2", "leaf-1", "swp3")]),
        (json.dumps(NETQ), [("leaf-1", "swp51", "spine-1", "swp1"), ("leaf-1", "swp3", "gpu-1", "eth2")]),
        (
            "side_a_device;side_a_type;side_a_name;side_b_device;side_b_type;side_b_name\n"
            "gpu-1;dcim.interface;eth2;leaf-1;dcim.interface;swp3\n",
            [("gpu-1", "eth2", "leaf-1", "swp3")],
        ),
        (
            SLURM_YAML,
            [("s1", "", "root", ""), ("s2", "", "root", ""), ("gpu01", "", "s1", ""), ("gpu02", "", "s1", ""),
             ("gpu03", "", "s2", "")],
        ),
        (
            TWO_HCAS,
            [("gpu1", "mlx5_0/1", "director-L01-U1", "1", 400e9), ("gpu1", "mlx5_1/1", "director-L01-U1", "2", 400e9),
             ("director-L01-U1", "3", "director-S01-U1", "5", 200e9)],
        ),
        (
            "digraph {a [role=host]; subgraph c { tor1 -> spine1:swp7:n [speed=\"400G\"] }\n a:eth1->tor1:swp1}",
            [("tor1", "", "spine1", "swp7", 400e9), ("a", "eth1", "tor1", "swp1")],
        ),
    ],
    ids=["netbox", "netq", "netbox-csv", "slurm-yaml", "director", "dot"],
)  # fmt: skip
def test_other_forms_are_read(tmp_path, text, rows):
    """Both ends that list a cable are one cable; power cables are none; parts of a director are switches."""
    path = tmp_path / "file"
    path.write_text(text)
    assert cables(cabling.read(path)) == stated(rows)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("graph g {\n a:1 -- b:2 [speed=", "line 2: a name is expected"),
        ("graph g {\n a:1 -- \n}", "a name is expected"),
        ("graph g { a:1 -- b:2 [x=1", "a bracket has no end"),
        ("SwitchName=s1 Nodes=n[1-", "a bracket has no end"),
        ("SwitchName=s1 Nodes=n[1-999999999999]", "more than 100000 names"),
        ("BlockName=b1 Nodes=n[1-4]", "blocks of nodes"),
        ("SwitchName=s1 Switches=\n", "lists no cables"),
        ("topology:\n  nodes: {a: {}}\n  links:\n    - endpoints: [a]\n", "links[0]: an endpoint is"),
        ("colour,size\nred,7\n", "of no known format of cabling"),
        ("Node A,Node B\nx1,y1\nx2,y1\n", "does not state which nodes are hosts"),
        ('<system version="1"><!ENTITY x "y"></system>', "it declares entities"),
    ],
)
def test_what_is_wrong_is_said_with_the_file(tmp_path, capsys, text, words):
    """Cut files, bombs and files of another kind are refused in one line that begins with the file."""
    path = tmp_path / "file"
    path.write_text(text)
    assert main(["topology", "import", str(path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"c4bench: {path}")
    assert words in line


def test_hosts_are_those_that_the_user_names(tmp_path, capsys):
    """`--hosts` decides; a pattern that no node has is an error, and nothing is written."""
    path = tmp_path / "links.csv"
    path.write_text("Node A,Node B\nx1,y1\nx2,y1\n")
    assert main(["topology", "import", str(path), "--hosts", "x*"]) == 0
    assert "hosts: [x1, x2]" in capsys.readouterr().out
    out = tmp_path / "out.yml"
    assert main(["topology", "import", str(path), "--hosts", "z*", "-o", str(out)]) == 2
    assert "no node is called z*" in capsys.readouterr().err
    assert not out.exists()


def test_hostlists_are_those_of_slurm():
    """Leading zeros stay, several brackets multiply."""
    assert list(hostlist("gpu-[08-10,12],io1,r[1-2]n[1-2]")) == [
        "gpu-08", "gpu-09", "gpu-10", "gpu-12", "io1", "r1n1", "r1n2", "r2n1", "r2n2",
    ]  # fmt: skip


def test_a_part_of_a_fabric_is_said_to_be_one(tmp_path, capsys):
    """Cables of two racks without what joins them are written, with a note; a host joined to a host is refused."""
    path = tmp_path / "links.csv"
    rows = "gpu1,eth0,leaf1,swp1\ngpu2,eth0,leaf2,swp1\n"
    path.write_text(f"Device A,Port A,Device B,Port B\n{rows}")
    assert main(["topology", "import", str(path)]) == 0
    assert "by the cables in the file, gpu2 cannot be reached from gpu1" in capsys.readouterr().out
    path.write_text(f"Device A,Port A,Device B,Port B\n{rows}gpu1,eth1,gpu2,eth1\n")
    assert main(["topology", "import", str(path), "--hosts", "gpu*"]) == 2
    assert "a link between two hosts" in capsys.readouterr().err
