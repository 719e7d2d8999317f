"""Saved outputs of hosts and switches are judged by the rules of live ones: the right port and advice, no more."""

import gzip
import io
import json
import random
import re
import shutil
import tarfile
from pathlib import Path

import pytest

from c4bench.cli.main import main
from c4bench.doctor.counters import Family, any_errors, family_of, judge_ports
from c4bench.doctor.facts import Mark
from c4bench.doctor.files import judge_files, recognise

CASES = Path(__file__).parents[2] / "evidence_fixtures/cases/16-device-outputs"
COUNTED = CASES / "ethtool_symbol_errors/gpu-e03_ens5f0np0_after.txt"
LINK = "the port at its other end"


def said(*paths):
    """Every remark as `mark device where: text -> advice`."""
    document = judge_files(paths)
    assert not document.unused, document.unused
    return [
        f"{one.mark} {device.device} {one.where}: {one.text} -> {one.advice}"
        for device in document.devices
        for one in device.remarks
    ]


def bad(*paths):
    return [line for line in said(*paths) if line.startswith("bad ")]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "rx_err_growing",
            ("rx_err_growing Ethernet40: errors grow, RX_ERR 17 to 9803 -> check the cable", LINK),
        ),
        ("portstat_json", ("Ethernet20: errors grow, RX_ERR 1204 to 88916 -> check the cable", LINK)),
        (
            "rdma_link.txt",
            ("mlx5_4 port 1 (ens6f0np0): is DOWN, physical state DISABLED; 5 of 6", "cause is not in this"),
        ),
        ("show_gids.txt", ("mlx5_2 port 1: has no IPv4 address, so no GID index 3: a job with that index fails here",)),
    ],
)
def test_the_one_that_is_to_be_looked_at_is_named_alone(name, words):
    """Of many ports with counts above zero, down links and unlike siblings, only the one that matters is bad."""
    (line,) = bad(CASES / name)
    assert all(word in line for word in words), line


def test_a_port_without_any_gid_is_named(tmp_path):
    """A port that `rdma link` lists and the table of GIDs does not have is without one, by its interface."""
    (tmp_path / "gpu1").mkdir()
    table = (CASES / "show_gids.txt").read_text().splitlines(keepends=True)
    (tmp_path / "gpu1/show_gids").write_text("".join(line for line in table if "mlx5_1\t" not in line))
    links = (f"link mlx5_{n}/1 state ACTIVE physical_state LINK_UP netdev ens{n} \n" for n in range(2))
    (tmp_path / "gpu1/rdma_link").write_text("".join(links))
    assert any(line.startswith("bad gpu1 ens1: has no IPv4 address, so no GID index 3") for line in bad(tmp_path))


def test_symbol_errors_are_told_from_congestion():
    """Symbol errors, CRC errors and the lost link are of this port's cable; pauses are noted as no matter of it."""
    lines = said(CASES / "ethtool_symbol_errors")
    wrong = [line for line in lines if line.startswith("bad gpu-e03 ens5f0np0: ")]
    symbols = "symbol errors grow, rx_symbol_err_phy 11 to 2885, rx_pcs_symbol_err_phy 19 to 5121"
    assert any(
        symbols in line and "are on lane 1 -> check the cable and the optics at this port" in line for line in wrong
    )
    assert any("link losses grow, link_down_events_phy 2 to 3" in line for line in wrong)
    assert len(wrong) == 3
    (pauses,) = [line for line in lines if line not in wrong]
    assert "pauses grow" in pauses
    assert "-> not the cable: congestion" in pauses
    assert not any("discard" in line for line in lines)


@pytest.mark.parametrize("files", [("aclshow.txt", "show_interfaces_counters.txt"), ("show_interfaces_counters.txt",)])
def test_discards_are_no_matter_of_a_cable(files):
    """Packets that a rule discards are noted; with the rule's own count beside them the rule is named."""
    lines = said(*(CASES / "acl_drops" / name for name in files))
    (line,) = [line for line in lines if "Ethernet24" in line]
    assert line.startswith("note ")
    assert "RX_DRP 4117: discarded by a rule, a VLAN or congestion, not by the cable" in line
    assert ("by rule RULE_DENY_7 of EDGE_IN" in line) is ("aclshow.txt" in files)
    assert ("which of them is not known" in line) is ("aclshow.txt" not in files)
    assert [line for line in lines if "Ethernet16: has no link; whether it is meant to is not known" in line]
    assert len(lines) == 2


def test_a_level_is_no_growth():
    """One reading shows that there are errors, and not that they grow; two equal ones that they do not."""
    (one,) = [line for line in said(CASES / "rx_err_growing/counters_1000.txt") if "Ethernet56" in line]
    assert one.startswith("unknown ")
    assert "RX_ERR 3 in all; whether they grow is not known" in one
    assert not bad(CASES / "rx_err_growing/counters_1010.txt")
    lines = said(CASES / "rx_err_growing")
    assert [line for line in lines if "Ethernet56: RX_ERR 3 in all, not growing: no reason to touch the cable" in line]
    assert [line for line in lines if "Ethernet48: RX_DRP 2 in all, not growing: not the cable" in line]


def test_the_settings_of_an_interface_are_checked_against_each_other():
    """Which DSCPs are lossless follows from trust, map and PFC together; 26 and 34 are not."""
    lines = said(CASES / "mlnx_qos.txt")
    assert any("ok " in line and "lossless are packets of DSCP 30, 32-33, 35-39 (priority 4" in line for line in lines)
    assert any("traffic class 4, ets 60 %; buffers for 3 m of cable" in line for line in lines)
    assert any(
        "3 (DSCP 24-29, 31)" in line and "DSCP 26, which guides give RoCE, has priority 3" in line for line in lines
    )
    assert any("priority 6 (DSCP 34, 48-55); traffic class 6, strict" in line for line in lines)
    assert not bad(CASES / "mlnx_qos.txt")


def test_neighbours_are_read_whatever_their_number():
    """One neighbour is an object and two are a list; a port's ID may be its alias only."""
    assert [line.partition(": ")[2].partition(" ->")[0] for line in said(CASES / "lldpctl")] == [
        "is cabled to leaf-a3 Ethernet12 (alias etp4a)",
        "is cabled to leaf-b1 Ethernet64 (alias etp9)",
        "is cabled to leaf-b2 Ethernet64 (alias etp9)",
    ]


KEYVALUE = (
    "lldp.eth2.via=LLDP\nlldp.eth2.chassis.name=leaf1\nlldp.eth2.port.ifname=swp9\nlldp.eth2.port.descr=to gpu7\n"
)
DEVINFO = """\
hca_id:	mlx5_0
	transport:			InfiniBand (0)
	fw_ver:				28.39.1002
	board_id:			MT_0000000838
	phys_port_cnt:			1
		port:	1
			state:			PORT_DOWN (1)
			max_mtu:		4096 (5)
			active_mtu:		1024 (3)
			link_layer:		Ethernet

hca_id:	mlx5_1
	fw_ver:				28.35.2000
	board_id:			MT_0000000838
		port:	1
			state:			PORT_ACTIVE (4)
			max_mtu:		4096 (5)
			active_mtu:		4096 (5)
			link_layer:		Ethernet
"""
IBSTAT = "CA 'mlx5_3'\n\tCA type: MT4129\n\tPort 1:\n\t\tState: Down\n\t\tPhysical state: Polling\n\t\tRate: 10\n"
MLXLINK = """\
Operational Info
----------------
State                           : Polling
Physical state                  : ETH_AN_FSM_ENABLE
Speed                           : N/A
FEC                             : N/A

Troubleshooting Info
--------------------
Status Opcode                   : 2
Recommendation                  : Negotiation failure. Check the partner's cable.
"""
MODULE = """\
	Identifier                                : 0x18 (QSFP-DD Double Density 8X Pluggable Transceiver (INF-8628))
	Rcvr signal avg optical power(Channel 1)  : 0.8912 mW / -0.50 dBm
	Rcvr signal avg optical power(Channel 2)  : 0.0001 mW / -40.00 dBm
	Module temperature high alarm             : On
	Module temperature low alarm              : Off
"""
DMESG = """\
[ 11.200300] mlx5_core 0000:1a:00.0 ens1f0np0: Link up
[ 3120.991] mlx5_core 0000:1a:00.0 ens1f0np0: Link down
[ 3125.100] mlx5_core 0000:1a:00.0 ens1f0np0: Link up
[ 4120.991] mlx5_core 0000:1a:00.0 ens1f0np0: Link down
[ 8811.120394] NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
[ 8820.000001] NVRM: Xid (PCI:0000:5e:00): 31, pid=4711, name=python, Ch 00000008, MMU Fault
[ 9001.5] mlx5_core 0000:5c:00.1: Port module event[error]: module 1, Cable error, Bus stuck (I2C or data shorted)
[ 9100.2] pcieport 0000:15:01.0: AER: PCIe Bus Error: severity=Corrected, type=Data Link Layer
"""
SMI = """\
==============NVSMI LOG==============
GPU 00000000:1A:00.0
    Product Name                          : NVIDIA H100 80GB HBM3
    ECC Errors
        Volatile
            SRAM Correctable              : 0
            SRAM Uncorrectable Parity     : 0
            DRAM Uncorrectable            : 3
        Aggregate
            DRAM Uncorrectable            : 9
    Remapped Rows
        Correctable Error                 : 0
        Pending                           : Yes
GPU 00000000:3B:00.0
    Product Name                          : NVIDIA H100 80GB HBM3
    ECC Errors
        Volatile
            DRAM Uncorrectable            : 0
        Aggregate
            DRAM Uncorrectable            : 9
"""
WATCHDOG = """\
      QUEUE       STATUS    STORM DETECTED/RESTORED    TX OK/DROP    RX OK/DROP    TX LAST OK/DROP    RX LAST OK/DROP
-----------  -----------  -------------------------  ------------  ------------  -----------------  -----------------
Ethernet0:3      stormed                        5/4       100/300       100/300              0/200              0/200
Ethernet4:3  operational                        2/2       100/100       100/100                0/0                0/0
"""
LINKINFO = """\
CA: gpu1 mlx5_0:
      0x1070fd0300a1b2c3  21    1[  ] ==( 4X   53.125 Gbps Active/  LinkUp)==>   7   11[  ] "MF0;ib-leaf1:X/U1" ( )
Switch: 0x1070fd0300a1b2d0 MF0;ib-leaf1:MQM8700/U1:
           7   11[  ] ==( 4X   53.125 Gbps Active/  LinkUp)==>      21    1[  ] "gpu1 mlx5_0" ( )
           7   31[  ] ==( 4X 25.78125 Gbps Active/  LinkUp)==>  3    1[  ] "MF0;ib-spine1:X/U1" ( Could be 53.125 Gbps)
           7   32[  ] ==(                Down/ Polling)==>             [  ] "" ( )
"""
QUERYERRORS = """\
Errors for 0x1070fd0300a1b2d0 "MF0;ib-leaf1:MQM8700/U1"
   GUID 0x1070fd0300a1b2d0 port ALL: [SymbolErrorCounter == 812] [PortXmitWait == 99]
   GUID 0x1070fd0300a1b2d0 port 11: [SymbolErrorCounter == 812] [PortXmitWait == 99]
"""
STATUS = """\
  Interface            Lanes    Speed    MTU    FEC    Alias    Vlan    Oper    Admin             Type    Asym PFC
-----------  ---------------  -------  -----  -----  -------  ------  ------  -------  ---------------  ----------
  Ethernet0          0,1,2,3     400G   9100     rs     etp1  routed      up       up  QSFP-DD Double         off
  Ethernet4          4,5,6,7     400G   9100     rs     etp2  routed    down       up              N/A         N/A
  Ethernet8        8,9,10,11     400G   9100     rs     etp3  routed    down     down              N/A         N/A
"""
PFC_PRIORITY = """\
Interface    Lossless priorities
-----------  ---------------------
Ethernet0    3,4
Ethernet4    3
"""
SMI_CSV = "index, name, ecc.errors.uncorrected.volatile.total, clocks_event_reasons.hw_slowdown\n0, H100, 0, Active\n"
CONFIG = {"DEVICE_METADATA": {"localhost": {}}, "PORT": {"Ethernet0": {"admin_status": "up", "mtu": "1500"}}}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (KEYVALUE, ["ok d eth2: is cabled to leaf1 swp9"]),
        (
            DEVINFO,
            ["bad d mlx5_0 port 1: is DOWN; 1 of 2 ports are active", "note d mlx5_0 port 1: has an RDMA MTU of 1024",
             "note d : adapters of MT_0000000838 have different firmware: 28.35.2000 on mlx5_1; 28.39.1002 on mlx5_0"],
        ),
        (IBSTAT, ["bad d mlx5_3 port 1: is DOWN, physical state Polling; the cause is not in this"]),
        (MLXLINK, ["bad d : mlxlink: Negotiation failure. Check the partner's cable.", "note d : has no link"]),
        (
            MODULE,
            ["bad d : the module reports Module temperature high alarm -> ",
             "bad d : channel 2 receives -40.0 dBm, another one -0.5 dBm -> clean"],
        ),
        (
            DMESG,
            ["bad d PCI:0000:3b:00: NVRM: Xid (PCI:0000:3b:00): 79",
             "note d PCI:0000:5e:00: NVRM: Xid (PCI:0000:5e:00): 31",
             "bad d 0000:5c:00.1: 0000:5c:00.1: Port module event[error]", "note d 0000:15:01.0: ",
             "bad d ens1f0np0: mlx5_core 0000:1a:00.0 ens1f0np0: Link down (2 times)"],
        ),
        (
            SMI,
            ["bad d 00000000:1A:00.0: 3 uncorrected memory errors since the last reset (DRAM Uncorrectable)",
             "bad d 00000000:1A:00.0: Remapped Rows: Pending"],
        ),
        (SMI_CSV, ["bad d 0: is slowed down: clocks_event_reasons.hw_slowdown"]),
        ("vm.zone_reclaim_mode = 1\nkernel.numa_balancing = 0\n", ["note d vm.zone_reclaim_mode: is 1: makes"]),
        (WATCHDOG, ["bad d Ethernet0:3: a pause storm is under way (5", "note d Ethernet4:3: 2 pause storms, all"]),
        (LINKINFO, ["bad d ib-leaf1[31] - ib-spine1[1]: runs at 4X 25.78125 Gbps, and could be 53.125 Gbps"]),
        (QUERYERRORS, ["unknown d ib-leaf1[11]: SymbolErrorCounter 812 in all; whether they grow"]),
        (STATUS, ["note d Ethernet4: is set up and has no link", "note d Ethernet8: is set down by hand"]),
        (PFC_PRIORITY, ["bad d : which priority is lossless differs, and nothing says which is right: priority 3,4"]),
        ("Profile: LOSSY\n-----  -----\necn    ecn_none\n-----  -----\n", ["note d LOSSY: marks no packets"]),
        (json.dumps(CONFIG), ["bad d Ethernet0: has an MTU of 1500", "bad d Ethernet0: PFC is off",
                                  "bad d Ethernet0: trusts none"]),
        ("Settings for ens1:\n\tSupported link modes: 100000baseCR4/Full\n\tSpeed: 25000Mb/s\n\tLink detected: yes\n",
         ["note d ens1: runs at 25 Gbit/s and can do 100 Gbit/s"]),
    ],
    ids=["lldp", "devinfo", "ibstat", "mlxlink", "module", "dmesg", "smi", "smi-csv", "sysctl", "pfcwd", "linkinfo",
         "queryerrors", "status", "pfc", "ecn", "config", "ethtool"],
)  # fmt: skip
def test_each_output_gives_just_these_remarks(tmp_path, text, expected):
    """Made-up outputs with one trouble or two in the layout of their tools: these are remarked on, and nothing else."""
    path = tmp_path / "d" / "out.txt"
    path.parent.mkdir()
    path.write_text(text)
    lines = said(path)
    assert len(lines) == len(expected), lines
    assert all(any(line.startswith(words) for line in lines) for words in expected), lines


SESSION = """\
admin@leaf7:~$ show interfaces counters
    IFACE    STATE      RX_OK    RX_ERR    RX_DRP      TX_OK    TX_ERR    TX_DRP
---------  -------  ---------  --------  --------  ---------  --------  --------
Ethernet0        U  1,000,000         5         0  1,000,000         0         0
admin@leaf7:~$ sleep 60
admin@leaf7:~$ show interfaces counters
    IFACE    STATE      RX_OK    RX_ERR    RX_DRP      TX_OK    TX_ERR    TX_DRP
---------  -------  ---------  --------  --------  ---------  --------  --------
Ethernet0        U  2,000,000        95         0  2,000,000         0         0
"""


PAUSED = """\
  Port Rx    PFC0    PFC3
---------  ------  ------
Ethernet0       0   {rx}

  Port Tx    PFC0    PFC3
---------  ------  ------
Ethernet0       0   {tx}
"""


def test_both_tables_of_an_output_count(tmp_path):
    """Pauses that a port receives are in another table than those that it sends: both grow."""
    for name, rx, tx in (("pfc_before", "1,200", "7"), ("pfc_after", "9,900", "8")):
        (tmp_path / name).write_text(PAUSED.format(rx=rx, tx=tx))
    (line,) = said(tmp_path)
    assert "Ethernet0: pauses grow, Rx_PFC3 1200 to 9900, Tx_PFC3 7 to 8 -> not the cable" in line


def test_a_log_without_troubles_is_no_trouble(tmp_path):
    """Outputs that tell of troubles only are judged when they have none; of others that is a layout not known."""
    (tmp_path / "dmesg").write_text("[    0.000000] Linux version 6.1.0\n[    9.1] mlx5_core 0000:1a:00.0: Link up\n")
    (tmp_path / "gids").write_text("DEV     PORT    INDEX   GID   IPv4   VER   DEV\n(nothing)\n")
    document = judge_files([tmp_path])
    assert [(device.outputs, device.remarks) for device in document.devices] == [(("dmesg",), ())]
    assert [one.reason for one in document.unused] == ["show_gids, but in a layout that is not known, or cut"]


def test_a_pasted_session_is_its_commands(tmp_path):
    """Prompts name the switch and divide the outputs: the same command twice is two readings."""
    (tmp_path / "notes.txt").write_text(f"from the ticket:\n\x1b[32m{SESSION}\x1b[0m")
    document = judge_files([tmp_path])
    (device,) = document.devices
    assert (device.device, [one.text for one in device.remarks]) == ("leaf7", ["errors grow, RX_ERR 5 to 95"])


def test_cleared_counters_are_no_growth(tmp_path):
    """If a port has carried less than before, its counters were cleared in between, and what grows is not known."""
    before, _, after = SESSION.partition("admin@leaf7:~$ sleep 60\n")
    for name, text in (("t2.txt", before), ("t1.txt", after)):
        (tmp_path / name).write_text(text)
    marks = {one.kind: one.mark for one in judge_files([tmp_path]).devices[0].remarks}
    assert marks == {"cleared": Mark.UNKNOWN, "errors": Mark.UNKNOWN}


@pytest.mark.parametrize("form", ["folder", "tar", "tar.gz", "tar.xz"])
def test_a_report_of_a_host_is_read_as_folder_and_as_archive(tmp_path, form):
    """The host's name is that of the report; a member may be compressed itself; others are listed."""
    root = tmp_path / "sosreport-gpu-a7-2026-03-01-abcdefg"
    files = {
        "sos_commands/networking/ethtool_-S_ens5f0np0": COUNTED.read_bytes(),
        "sos_commands/infiniband/ibv_devinfo_-v.gz": gzip.compress(DEVINFO.encode()),
        "var/lib/data.bin": b"\0\1\2",
        "etc/motd": b"welcome\n",
    }  # fmt: skip
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    path = root
    if form != "folder":
        path = tmp_path / f"report.{form}"
        with tarfile.open(path, f"w:{form.partition('.')[2]}") as archive:
            archive.add(root, root.name)
        shutil.rmtree(root)
    document = judge_files([path])
    (device,) = document.devices
    assert (device.device, set(device.outputs)) == ("gpu-a7", {"ethtool -S", "ibv_devinfo"})
    assert {one.where for one in device.remarks} >= {"ens5f0np0", "mlx5_0 port 1"}
    reasons = {one.file.rpartition("/")[2]: one.reason for one in document.unused}
    assert reasons == {"data.bin": "it is no text", "motd": "it is no output that is known"}


@pytest.mark.parametrize("form", ["", "gz", "xz"])
def test_a_cut_archive_gives_what_came_before_the_cut(tmp_path, form):
    """The members before the cut are judged, and the cut is stated."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode=f"w:{form}") as archive:
        archive.add(CASES / "rdma_link.txt", "leaf/rdma_link.txt")
        noise = random.Random(1).randbytes(100_000).hex().encode()
        member = tarfile.TarInfo("leaf/show_gids.txt")
        member.size = len(noise)
        archive.addfile(member, io.BytesIO(noise))
    (tmp_path / "x.tar").write_bytes(data.getvalue()[:50_100])
    document = judge_files([tmp_path / "x.tar"])
    assert [device.outputs for device in document.devices] == [("rdma link",)]
    assert [one.reason for one in document.unused if "cut" in one.reason]


def test_the_command_says_what_it_did_not_use(tmp_path, capsys):
    """Bad links give exit code 3, none 0; a folder without any known output 4; cabling files are sent on."""
    assert main(["doctor", "--files", str(CASES / "rdma_link.txt")]) == 3
    assert "BAD   mlx5_4 port 1 (ens6f0np0): is DOWN" in capsys.readouterr().out
    assert main(["doctor", "--files", str(CASES / "lldpctl")]) == 0
    (tmp_path / "fabric.dot").write_text('graph "\x1b[31m" {\n a:1 -- b:2\n}\n')
    assert main(["doctor", "--files", str(tmp_path)]) == 4
    printed = capsys.readouterr()
    assert "Graphviz: c4bench topology import reads it" in printed.out
    assert "\x1b" not in printed.out + printed.err
    assert main(["doctor", "--files", str(tmp_path / "none")]) == 2
    assert main(["doctor", "--files", str(CASES), "--json"]) == 3
    assert {one["device"] for one in json.loads(capsys.readouterr().out.splitlines()[-1])["devices"]} >= {"gpu-e03"}


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("16-device-outputs/rdma_link.txt", "rdma link: c4bench doctor --files"),
        ("16-device-outputs/portstat_json/drops_only.json", "portstat -j: c4bench doctor --files"),
        ("14-cabling/ibnetdiscover.out", "ibnetdiscover: c4bench topology import"),
        ("14-cabling/links.csv", "list of cables (CSV): c4bench topology import"),
        ("01a-ras-two-ahead/ras.txt", None),
        ("15-not-an-inventory/service.ini", None),
    ],
)
def test_a_file_is_recognised_by_its_beginning(path, words):
    """What reads a file is named, or that it is neither an output nor a cabling file."""
    found = recognise((CASES.parent / path).read_bytes()[:65536], "f")
    assert (found or "").startswith(words or "")
    assert (found is None) is (words is None)


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("rx_symbol_err_phy", Family.SYMBOLS), ("SymbolErrorCounter", Family.SYMBOLS),
        ("RX_ERR", Family.ERRORS), ("rx_crc_errors_phy", Family.ERRORS), ("PortRcvErrors", Family.ERRORS),
        ("TX_DRP", Family.DISCARDS), ("rx_prio3_discards", Family.DISCARDS), ("PortXmitDiscards", Family.DISCARDS),
        ("rx_out_of_buffer", Family.OVERRUNS), ("tx_prio3_pause", Family.PAUSES), ("Rx_PFC3", Family.PAUSES),
        ("link_down_events_phy", Family.LOSSES), ("FEC_UNCORR", Family.UNCORRECTED),
        ("tx_pause_storm_error_events", Family.STORMS), ("RX_OK", None), ("rx_corrected_bits_phy", None),
    ],
)  # fmt: skip
def test_a_counter_belongs_to_one_family(name, family):
    """Errors, discards, pauses and symbol errors are different findings; traffic and corrected bits are none."""
    assert family_of(name) is family


def test_hostile_names_and_numbers_are_no_trouble():
    """A port's name is printed safely, and what is no number of 20 digits is no counter."""
    counts = {"Eth\x1b[2J": {"RX_DRP": 7}}
    assert not any_errors(counts)
    assert [one.where for one in judge_ports({}, counts)] == ["Eth\\x1b[2J"]


RECORDED = Path(__file__).parents[1] / "verbs/recorded"


def test_congestion_that_a_connectx_only_tells_itself_is_none(tmp_path):
    """Of two readings with repeats and as many more CNPs, the repeats grow and the congestion marks do not."""
    first = (RECORDED / "rdma_statistic_connectx6.txt").read_text()
    second = first
    for name, more in (("rp_cnp_handled 10", 40), ("roce_slow_restart_cnps 8", 38), ("roce_adp_retrans 5", 35)):
        second = second.replace(name, f"{name.split()[0]} {more}")
    (tmp_path / "rdma0_before.txt").write_text(first)
    (tmp_path / "rdma0_after.txt").write_text(second)
    grown = [line for line in said(tmp_path) if " grow, " in line]
    assert len(grown) == 1, grown
    assert "retransmissions grow, roce_adp_retrans 5 to 35" in grown[0]
    (tmp_path / "rdma0_after.txt").write_text(second.replace("rp_cnp_handled 40", "rp_cnp_handled 41"))
    assert any("congestion marks grow, rp_cnp_handled 2 to 3" in line for line in said(tmp_path))


@pytest.mark.parametrize("file", ["rdma_statistic_connectx6.txt", "ethtool_statistics_connectx6.txt"])
def test_each_counter_of_a_connectx_is_judged_or_left_out_on_purpose(file):
    """Of a recorded reading only traffic, states of buffers, and what programs do to themselves have no rule."""
    no_rule = re.compile(
        r"[rt]x_\w*(packets|bytes)(_phy)?|rx_\w+_requests|rx_dct_connect|re[qs]p?_\w*(error|invalid)\w*|duplicate_request"
        r"|outbound_pci_stalled_wr|rx_corrected_bits_phy|rx_err_lane_\d_phy|roce_slow_restart_\w+"
    )
    names = re.findall(r"\b([a-z]\w+):? \d+", (RECORDED / file).read_text())
    assert len(names) > 25
    assert [name for name in names if not family_of(name) and not no_rule.fullmatch(name)] == []
    assert [name for name in names if family_of(name) and no_rule.fullmatch(name) and "steer" not in name] == []
