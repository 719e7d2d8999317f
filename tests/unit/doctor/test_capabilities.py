"""What is concluded from what a host says of itself."""

import sys

import msgspec
import pytest

from c4bench.doctor import overview
from c4bench.doctor.capabilities import NAMES, State, evaluate, unreachable
from c4bench.doctor.findings import Device, HostSelfReport, InjectorState, Knob, MtuToPeer, Netdev, Port
from c4bench.doctor.look import priorities
from c4bench.model.fabric import Host, Nic
from c4bench.remote.clock import ClockOffset

NIC = Nic("n1", 0, "mlx5_0", "eth2", "10.2.0.1", 1e11, dscp=26)
HOST = Host("n1", "10.1.0.1", (NIC,), disruptive=True)
PORT = Port(1, "Ethernet", "ACTIVE", "100 Gb/sec (2X HDR)", ("IB/RoCE v1", "RoCE v2"), "eth2", 0)
NETDEV = Netdev(9000, "up", (3,), (3,), "dscp", tuple(dscp // 8 for dscp in range(64)))
DEVICE = Device("mlx5_0", False, "22.36.1010", "MT_0000000359", (PORT,))
FOUND = HostSelfReport(
    python=".".join(map(str, sys.version_info[:3])),
    root=False,
    agent="0.1.0",
    rdma=(DEVICE,),
    uverbs="",
    netdevs={"eth2": NETDEV},
    knobs={"0": Knob("LiveSourcePort", "")},
    memlock_bytes=-1,
    gpus=("NVIDIA H100 80GB HBM3",) * 8,
    injector=InjectorState(True, "", ()),
)
CLOCK = ClockOffset(0.0004, 0.001)
PEER_MTU = MtuToPeer("n1/0", "n2/0", 4096)


def states(found=FOUND, host=HOST, clock=CLOCK, mtus=(PEER_MTU,)):
    return {one.name: one for one in evaluate(host, found, clock, mtus).capabilities}


def change(**fields):
    return msgspec.structs.replace(FOUND, **fields)


def device(**fields):
    return change(rdma=(msgspec.structs.replace(DEVICE, **fields),))


def netdev(**fields):
    return change(netdevs={"eth2": msgspec.structs.replace(NETDEV, **fields)})


def port(**fields):
    return device(ports=(msgspec.structs.replace(PORT, **fields),))


def test_a_host_with_everything_has_every_capability_but_infiniband():
    """Hardware that is set up right is real in every column, and nothing is bad."""
    report = evaluate(HOST, FOUND, CLOCK, (PEER_MTU,))
    assert [one.name for one in report.capabilities] == list(NAMES)
    assert {one.name for one in report.capabilities if one.state is not State.REAL} == {"infiniband"}
    assert report.bad == ()


@pytest.mark.parametrize(
    ("name", "found", "words", "bad"),
    [
        ("agents", change(agent=""), "deploy", True),
        ("python", change(agent="", python="3.6.8"), "3.6.8, not", True),
        ("rdma", change(rdma=()), "lacks mlx5_0", True),
        ("rdma", port(state="DOWN"), "no active port: mlx5_0", True),
        ("rdma", change(uverbs="user 1000 may open none"), "user 1000", True),
        ("rocev2", port(gid_types=("IB/RoCE v1",)), "no GID", False),
        ("paths", change(knobs={"0": Knob("Unsteered", "firmware refuses")}), "firmware refuses", False),
        ("paths", change(knobs={}), "c4.nics is empty", False),
        ("pfc", change(netdevs={"eth2": Netdev(9000, "up", (), (3,))}), "off", False),
        ("pfc", change(netdevs={"eth2": Netdev(9000, "up", None, (3,))}), "reports it", False),
        ("pfc", change(netdevs={}), "no interface", False),
        ("ecn", change(netdevs={"eth2": Netdev(9000, "up", (3,), ())}), "DCQCN", False),
        ("lossless", netdev(pfc=(4,)), "DSCP 26 has priority 3 on eth2, and PFC is on at 4", False),
        ("lossless", netdev(trust="pcp", priorities=()), "--trust dscp", False),
        ("lossless", netdev(pfc=None, trust="", priorities=()), "unknown: neither", False),
        ("lossless", netdev(trust="", priorities=()), "unknown: neither", False),
        ("lossless", change(netdevs={}), "no interface of n1/0", False),
        ("lossless", device(traffic_class=106 + 4), "makes all its packets DSCP 27, not 26", False),
        ("gpu", change(gpus=()), "nvidia-smi", False),
        ("memlock", change(memlock_bytes=65536), "64 KiB", False),
        ("root", change(injector=InjectorState(False, "a password is required", ())), "password", False),
        ("clean", change(injector=InjectorState(True, "", ('{"state":"quarantined"}',))), "quarantined", True),
        ("infiniband", port(link_layer="InfiniBand"), "no subnet manager", False),
    ],
)
def test_each_thing_that_is_missing_is_absent_for_its_own_reason(name, found, words, bad):
    """One thing taken away is one capability absent, with the reason; and only what nothing works without is bad."""
    one = states(found)[name]
    assert one.state is State.ABSENT
    assert words in f"{one.detail} {one.fix}"
    assert one.bad is bad
    assert one.fix or not bad


def test_software_and_hardware_are_distinguished():
    """An RDMA device that hangs on no bus is emulated, and so is all that is only as real as it is."""
    found = states(device(software=True))
    assert {name for name, one in found.items() if one.state is State.EMULATED} == {"rdma", "rocev2", "paths"}


def test_infiniband_needs_a_subnet_manager():
    """A port that a subnet manager has spoken to is usable."""
    assert states(port(link_layer="InfiniBand", subnet_manager_lid=1))["infiniband"].state is State.REAL


@pytest.mark.parametrize(("passed", "bad"), [(4096, False), (1024, True), (0, False)])
def test_a_path_mtu_below_the_nics_is_bad_and_one_without_reply_is_unknown(passed, bad):
    """A switch in between with a smaller MTU would drop RDMA silently; a peer that answers no echo proves nothing."""
    one = states(mtus=(MtuToPeer("n1/0", "n2/0", passed),))["mtu"]
    assert one.bad is bad
    assert (one.state is State.ABSENT) == (passed < 4096)


@pytest.mark.parametrize(("offset_s", "error_s", "near"), [(0.05, 0.0, True), (0.3, 0.01, False), (0.3, 0.25, True)])
def test_a_clock_is_off_only_beyond_its_error(offset_s, error_s, near):
    """What the exchange cannot tell is not held against the host."""
    assert (states(clock=ClockOffset(-offset_s, error_s))["clock"].state is State.REAL) is near


def test_hosts_that_are_alike_share_a_row_and_a_reason():
    """A page for 256 hosts is as short as what there is to say of them."""
    reports = [evaluate(msgspec.structs.replace(HOST, name=f"n{n}"), FOUND, CLOCK) for n in range(255)]
    page = overview.lines([*reports, unreachable(HOST, "n1: no route to host")])
    assert len(page) < 10
    assert any("255" not in line and "and 249 more" in line for line in page)
    assert any(line.startswith("BAD  reachable: n1: no route to host  ->") for line in page)


def test_equal_problems_of_many_hosts_are_grouped():
    """A reason that names the host's own NIC is one reason; of reasons that name each its peer, a few are told."""
    nics = [msgspec.structs.replace(NIC, host=f"n{n}") for n in range(64)]
    hosts = [msgspec.structs.replace(HOST, name=nic.host, nics=(nic,)) for nic in nics]
    mtus = [[MtuToPeer(f"{host.name}/0", f"n{number + 1}/0", 0)] for number, host in enumerate(hosts)]
    found = msgspec.structs.replace(FOUND, knobs={"0": Knob("", "refused")})
    page = overview.lines([evaluate(host, found, CLOCK, own) for host, own in zip(hosts, mtus, strict=True)])
    assert [line for line in page if "paths" in line and "refused" in line] == [
        "no   paths: n0, n1, n2, n3, n4, n5 and 58 more: NIC 0: refused  -> see docs/lab-setup.md"
    ]
    mtu = [line for line in page if line.startswith("no   mtu")]
    assert len(mtu) == 7
    assert "no echo reply from n1/0 to NIC 0" in mtu[0]
    assert mtu[-1].startswith("no   mtu: n")
    assert "and 52 more: likewise" in mtu[-1]


def test_priorities_are_read_off_mlnx_qos():
    """As the tool prints them, in either of its spellings."""
    text = """Priority trust state: dscp
PFC configuration:
	priority    0   1   2   3   4   5   6   7
	enabled     0   0   0   1   0   0   0   0
	buffer      0   0   0   1   0   0   0   0
"""
    assert priorities(text) == priorities(text.replace("enabled ", "enabled: ")) == [3]
    assert priorities("no such device") is None
