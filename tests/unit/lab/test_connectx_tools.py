"""The programs of a lab's ConnectX: what they print is read by readers of the real ones, and nonsense is refused."""

import json

import pytest

from c4bench.inject import connectx
from c4bench.lab import topology_file
from c4bench.lab.twin import connectx as furnished
from c4bench.lab.twin import connectx_tools as tools

PFC = """\
h0n0w settings rate 25000000000 lossless 8 xoff 200000 xon 100000 headroom 100000 limit 400000 detect_us 0
h0n0w dscp 0 0 0 0 0 0 0 0 1 1 1 1 1 1 1 1
h0n0w priority 3 rx_pause 2 rx_pause_us 9 tx_pause 0 tx_pause_us 0 held 0 queued 0 dropped 1 storm 0 shape 2000000000
p0 priority 4 rx_pause 0 rx_pause_us 0 tx_pause 0 tx_pause_us 0 held 0 queued 0 dropped 0 storm 0 shape 1000000000
"""


@pytest.fixture
def nic(tmp_path, monkeypatch):
    """The NIC of a host, whose programs keep its settings in a folder of the test."""
    text = (topology_file.DIRECTORY / "clos-2x4.yml").read_text() + "nics: connectx-6\n"
    topology = topology_file.parse(text, "mine.yml")
    (tmp_path / "nics.json").write_text(json.dumps([*furnished._rows(topology, topology.ports[:1])]))
    (tmp_path / "pfc").write_text(PFC)
    for name, value in (("HOME", tmp_path), ("NICS", tmp_path / "nics.json"), ("_PFC", tmp_path / "pfc")):
        monkeypatch.setattr(tools, name, value)
    return tools.nics()[0]


def test_a_nic_is_found_by_each_of_its_names(nic):
    """Interface, RDMA device and PCI address name the same NIC; another name is refused."""
    assert nic.pci == "0000:41:00.0"
    assert {tools.nic_of(name, "").wire for name in ("h0n0", "mlx5_0", nic.pci, f"pci/{nic.pci}")} == {"h0n0w"}
    with pytest.raises(tools.Stop, match="no such"):
        tools.nic_of("h1n0", "no such")


def test_queues_are_listed_as_mlnx_qos_lists_them(nic, capsys):
    """Limits, PFC and the priorities of DSCPs, of this NIC's wire alone; and what trust changes of them."""
    tools._show_qos(nic, tools.Queues(nic.wire))
    printed = capsys.readouterr().out
    found = connectx.parse_qos(printed)
    assert found.limits_gbps == (0, 0, 0, 2, 0, 0, 0, 0)
    assert (found.trust, found.priorities[26], len(found.priorities)) == ("dscp", 3, 64)
    assert "enabled     0   0   0   1   0" in printed
    tools._map_dscp(nic, "set,26,5")
    nic.save()
    assert tools.nics()[0].priorities[26] == 5
    tools._set_trust(nic, "pcp")
    tools._show_qos(nic, tools.Queues(nic.wire))
    assert connectx.parse_qos(capsys.readouterr().out).priorities == {}
    with pytest.raises(tools.Stop):
        tools._map_dscp(nic, "set,64,0")


def test_the_register_of_retransmissions_is_printed_as_mlxreg_prints_it(nic, capsys):
    """One field may be set, and says whether time-outs have a floor."""
    tools.mlxreg(["-d", nic.pci, "--yes", "--reg_name", "ROCE_ACCL", "--get"])
    fields = connectx.parse_register(capsys.readouterr().out)
    assert fields[connectx.FLOOR_OFF] == 0
    assert [name for name, value in fields.items() if name.endswith("_select") and value] == [
        f"{connectx.FLOOR_OFF}_field_select"
    ]
    with pytest.raises(tools.Stop, match="ROCE_ACCL"):
        tools.mlxreg(["-d", nic.pci, "--reg_name", "PAOS", "--get"])


def test_links_are_printed_as_ethtool_and_setpci_print_them(nic, capsys):
    """Forward error correction, and the generation of the PCIe link above; ethtool's JSON is not known here."""
    tools.ethtool(["--show-fec", "h0n0"])
    assert connectx.parse_fec(capsys.readouterr().out).active == "rs"
    tools.setpci(["-s", nic.above, "CAP_EXP+30.w"])
    assert capsys.readouterr().out == "0004\n"
    tools.setpci(["-s", nic.above, "CAP_EXP+30.w=1:f"])
    assert tools.nics()[0].target_generation == 1
    with pytest.raises(tools.Stop, match="bad command"):
        tools.ethtool(["--json", "h0n0"])
