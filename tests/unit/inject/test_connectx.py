"""Faults of ConnectX NICs: planned from what tools of all versions print, and refused where they cannot be undone."""

import subprocess
from pathlib import Path

import msgspec
import pytest
from fakes import NIC, nic_request, target

from c4bench.errors import C4Error, UnhealthyError
from c4bench.inject import actions, connectx, interfaces
from c4bench.inject.actions import Run
from c4bench.inject.catalogue import load
from c4bench.inject.registry import DRIVERS, WITNESSES
from c4bench.model.fault import FaultRequest

CATALOGUE = load()
TOOLS = Path(__file__).parent / "tools"
CONNECTX = msgspec.structs.replace(NIC, device="mlx5_0", netdev="enp65s0f0np0", rate_bps=100e9)
DEV, PCI = CONNECTX.netdev, "0000:41:00.0"
FEC = "FEC parameters for enp65s0f0np0:\n{}Configured FEC encodings: {}\nActive FEC encoding: {}\n"


def printed(name):
    return (TOOLS / name).read_text()


class Host:
    """A host with a ConnectX: what each tool prints by its name and last words, and the files of its driver."""

    def __init__(self, sysfs):
        self.sysfs = sysfs
        self.outputs = {
            "ethtool": printed("ethtool.txt"),
            "--show-fec": FEC.format("", "Auto", "RS"),
            "mlnx_qos": printed("mlnx_qos.txt"),
            "mlxlink": printed("mlxlink_ethernet.txt"),
            "mlxreg": printed("mlxreg_roce_accl.txt"),
            "setpci": "0004\n",
        }
        self.asked = []
        port = sysfs / "devices/pci0000:40/0000:40:03.1/0000:41:00.0"
        port.mkdir(parents=True)
        (sysfs / "infiniband/mlx5_0").mkdir(parents=True)
        (sysfs / "infiniband/mlx5_0/device").symlink_to(port)
        (sysfs / "drivers/mlx5_core").mkdir(parents=True)
        (port / "driver").symlink_to(sysfs / "drivers/mlx5_core")
        self.write("infiniband/mlx5_0/tc/1/traffic_class", "")
        for end in ("roce_np", "roce_rp"):
            for priority in range(8):
                self.write(f"net/{DEV}/ecn/{end}/enable/{priority}", f"{int(priority == 3)}\n")

    def write(self, name, text):
        path = self.sysfs / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def run(self, argv, _netns, _stdin=""):
        self.asked.append(argv)
        if argv[0] == "ethtool" and argv[1] == "--json" and "--json" not in self.outputs:
            raise UnhealthyError("ethtool: unrecognized option '--json'")
        return self.outputs[next(name for name in reversed(argv) if name in self.outputs)]


@pytest.fixture
def host(tmp_path, monkeypatch):
    made = Host(tmp_path)
    monkeypatch.setattr(connectx, "SYSFS", tmp_path)
    monkeypatch.setattr(connectx, "run", made.run)
    which = lambda name: f"/usr/bin/{name}" if name in made.outputs else None  # noqa: E731
    monkeypatch.setattr(connectx.shutil, "which", which)
    return made


def request_of(fault, **parameters):
    request = msgspec.structs.replace(nic_request(fault, **parameters), nic=CONNECTX)
    return CATALOGUE.resolve(request)[1]


def plan(fault, kind="mlx5_core", **parameters):
    """The commands that apply the fault, and those that revert it."""
    found = msgspec.structs.replace(target(), interface=CONNECTX)
    made = DRIVERS[CATALOGUE.specs[fault].drivers[kind]](request_of(fault, **parameters), found)
    return [[str(action) for action in side] for side in (made.apply, made.revert)]


JSON = printed("ethtool_json.txt")


@pytest.mark.parametrize("version", ["text", "json"])
def test_an_ethernet_link_is_fixed_at_a_speed_and_negotiates_again(host, version):
    """What the link advertised is everything it supports, so negotiation on gives exactly that back."""
    if version == "json":
        host.outputs["--json"] = JSON
    assert plan("nic.speed", speed="25G") == [
        [f"ethtool -s {DEV} speed 25000 autoneg off"],
        [f"ethtool -s {DEV} autoneg on"],
    ]


def test_a_fixed_speed_comes_back_fixed(host):
    """A link that did not negotiate before does not afterwards."""
    host.outputs["ethtool"] = host.outputs["ethtool"].replace("Auto-negotiation: on", "Auto-negotiation: off")
    assert plan("nic.speed", speed="40G")[1] == [f"ethtool -s {DEV} speed 100000 autoneg off"]
    host.outputs["--json"] = JSON.replace('"auto-negotiation": true', '"auto-negotiation": false')
    assert plan("nic.speed", speed="40G")[1] == [f"ethtool -s {DEV} speed 100000 autoneg off"]


@pytest.mark.parametrize(
    ("text", "change", "speed", "complaint"),
    [
        ("ethtool.txt", ("", ""), "200G", "runs at 100000 Mb/s, no more than 200000"),
        ("ethtool.txt", ("25000baseCR/Full", "20000baseCR/Full"), "25G", "does not support 25000 Mb/s"),
        ("ethtool.txt", ("Advertised link modes:  1000baseKX", "Advertised link modes:  1000baseT"), "25G", "restored"),
        ("ethtool.txt", ("Speed: 100000Mb/s", "Speed: Unknown!"), "25G", "reports no speed"),
        ("ethtool_json.txt", ('"speed": 100000', '"speed": 4294967295'), "25G", "reports no speed"),
        ("ethtool_json.txt", ('"1000baseKX/Full","10000baseKR/Full","25000', '"25000'), "25G", "restored"),
        ("ethtool_json.txt", ("{", "{{"), "25G", "JSON that c4bench cannot read"),
        ("mlnx_qos.txt", ("", ""), "25G", "printed no settings of a link"),
    ],
)  # fmt: skip
def test_a_speed_that_could_not_be_had_or_put_back_is_refused(host, text, change, speed, complaint):
    """Nothing is planned that the link cannot do, or that could not be undone exactly."""
    host.outputs["--json" if "json" in text else "ethtool"] = printed(text).replace(*change, 1)
    with pytest.raises(UnhealthyError, match=complaint):
        plan("nic.speed", speed=speed)


@pytest.mark.parametrize(
    ("fec", "revert"),
    [
        (FEC.format("", "Auto", "RS"), "auto"),  # ethtool 4 and 5
        (FEC.format("Supported/", "Auto RS", "RS"), "auto rs"),  # ethtool 6
        ('[{"ifname": "x", "config": ["RS"], "active": ["RS"]}]', "rs"),
    ],
)
def test_another_fec_is_fixed_and_the_configured_one_comes_back(host, fec, revert):
    """All three forms of the answer give the same fault, and their own revert."""
    host.outputs["--show-fec"] = fec
    if fec.startswith("["):
        host.outputs |= {"--json": JSON}
    assert plan("nic.fec") == [
        [f"ethtool --set-fec {DEV} encoding off"],
        [f"ethtool --set-fec {DEV} encoding {revert}"],
    ]


@pytest.mark.parametrize(
    ("fec", "encoding", "complaint"),
    [
        (FEC.format("", "Auto", "RS"), "rs", "uses FEC rs already"),
        (FEC.format("", "None", "None"), "off", "uses FEC off already"),
        (FEC.format("", "None", "None"), "rs", "does not say what FEC is configured"),
        ("netlink error: Operation not supported\n", "rs", "lists no FEC encodings"),
    ],
)
def test_a_fec_that_could_not_be_put_back_is_refused(host, fec, encoding, complaint):
    """What is in use already, or not known, is not changed."""
    host.outputs["--show-fec"] = fec
    with pytest.raises(UnhealthyError, match=complaint):
        plan("nic.fec", encoding=encoding)


def test_one_traffic_class_is_limited_and_all_eight_are_put_back(host):
    """The tool takes every class's limit at once: another class's own limit must survive both commands."""
    assert plan("nic.qos", fraction=0.25) == [
        [f"mlnx_qos -i {DEV} -r 0,0,0,25,3,0,0,0"],
        [f"mlnx_qos -i {DEV} -r 0,0,0,0,3,0,0,0"],
    ]
    assert host.asked == [("mlnx_qos", "-i", DEV, "-a")]
    assert plan("nic.rate", fraction=0.5)[0] == [f"mlnx_qos -i {DEV} -r 50,50,50,50,3,50,50,50"]


@pytest.mark.parametrize("version", ["mlnx_qos_ofed5.txt", "mlnx_qos_ofed24.txt"])
def test_the_whole_nic_is_limited_by_all_its_classes(host, version):
    """Whatever class the data has, it gets a quarter; classes that no priority has are limited too."""
    host.outputs["mlnx_qos"] = printed(version)
    assert plan("nic.rate", fraction=0.25) == [
        [f"mlnx_qos -i {DEV} -r 25,25,25,25,25,25,25,25"],
        [f"mlnx_qos -i {DEV} -r 0,0,0,0,0,0,0,0"],
    ]
    assert plan("nic.rate", fraction=0.0199)[0] == [f"mlnx_qos -i {DEV} -r 1,1,1,1,1,1,1,1"]


@pytest.mark.parametrize(
    ("fault", "change", "parameters", "complaint"),
    [
        ("nic.rate", ("", ""), {"direction": "rx"}, "limits only what it sends"),
        ("nic.rate", ("", ""), {"fraction": 0.005}, "1 Gbit/s at least, 1.00% of h5/0"),
        ("nic.rate", ("3.0 Gbps", "2.5 Gbps"), {}, "has a limit of 2.5 Gbit/s, which cannot be restored"),
        ("nic.qos", ("", ""), {"traffic_class": 4}, "limits class 4 to 3 Gbit/s already, no more than 25"),
        ("nic.qos", ("tc: 5 rate", "tc: 9 rate"), {}, "limits of 7 traffic classes, not 8"),
        ("nic.qos", ("OS controlled", "Firmware controlled"), {}, "negotiates queues with the switch"),
    ],
)
def test_a_limit_that_could_not_be_had_or_put_back_is_refused(host, fault, change, parameters, complaint):
    """The tool takes whole Gbit/s in one direction, and half an answer would put back half the limits."""
    host.outputs["mlnx_qos"] = host.outputs["mlnx_qos"].replace(*change)
    with pytest.raises(UnhealthyError, match=complaint):
        plan(fault, **parameters)


def test_a_limit_that_the_tool_only_complains_about_was_refused(monkeypatch):
    """mlnx_qos ends with 0 when the kernel has refused a limit; what it prints is its answer."""
    answers = iter(["Rate limit is not supported on your system!\n", "tc: 0 ratelimit: 25.0 Gbps\n"])
    monkeypatch.setattr(actions, "run", lambda *_: next(answers))
    command = Run(("mlnx_qos", "-i", DEV, "-r", "1"), refusal="Rate limit is not supported")
    with pytest.raises(UnhealthyError, match="was refused: Rate limit is not supported"):
        command.perform()
    command.perform()


def test_trust_in_dscps_comes_back_with_each_priority_that_is_not_the_usual_one(host):
    """The kernel's driver forgets the priorities with the trust, and then maps DSCP n to n // 8."""
    assert plan("nic.trust")[1][:3] == [
        f"mlnx_qos -i {DEV} --trust dscp",
        f"mlnx_qos -i {DEV} --dscp2prio del,8,1",
        f"mlnx_qos -i {DEV} --dscp2prio del,9,1",
    ]
    host.outputs["mlnx_qos"] = printed("mlnx_qos_ofed5.txt")
    assert plan("nic.trust") == [
        [f"mlnx_qos -i {DEV} --trust pcp"],
        [
            f"mlnx_qos -i {DEV} --trust dscp",
            f"mlnx_qos -i {DEV} --dscp2prio set,30,4",
            f"mlnx_qos -i {DEV} --dscp2prio set,34,6",
        ],
    ]
    host.outputs["mlnx_qos"] = printed("mlnx_qos_ofed24.txt")
    with pytest.raises(UnhealthyError, match="h5/0 trusts pcp already"):
        plan("nic.trust")


def test_trust_in_dscps_is_done_by_dcb_where_mlnx_qos_is_missing(host):
    """iproute2 takes all priorities at once, and gives them back at once."""
    del host.outputs["mlnx_qos"]
    host.outputs["dcb"] = printed("dcb_app.txt")
    assert plan("nic.trust") == [
        [f"dcb app flush dev {DEV} dscp-prio"],
        [f"dcb app replace dev {DEV} dscp-prio 0:0 26:3 48:6"],
    ]
    assert WITNESSES["qos_trust"](request_of("nic.trust")).before() == {"trusts_dscp": 1.0}
    host.outputs["dcb"] = "{}"
    with pytest.raises(UnhealthyError, match="has no priority for any DSCP"):
        plan("nic.trust")


def test_a_port_is_switched_off_and_on(host):
    """Ethernet and InfiniBand, with the tool of MFT or that of mstflint; only a port that is up."""
    off, on = f"mlxlink -d {PCI} --port_state DN", f"mlxlink -d {PCI} --port_state UP"
    assert plan("nic.port_off") == plan("nic.flap", "ib") == [[off], [on]]
    host.outputs["mstlink"] = host.outputs.pop("mlxlink")
    assert plan("nic.port_off", "ib")[0] == [f"mstlink -d {PCI} --port_state DN"]
    host.outputs["mstlink"] = host.outputs["mstlink"].replace(": Active", ": \x1b[31mPolling\x1b[0m")
    with pytest.raises(UnhealthyError, match="the port of h5/0 is Polling, not Active"):
        plan("nic.port_off")


def test_an_infiniband_port_is_left_one_speed_and_given_all_again(host):
    """The speeds that were enabled come back by name, and the link trains each time; old and new titles are read."""
    host.outputs["mlxlink"] = printed("mlxlink.txt")
    assert plan("nic.speed", "ib", speed="100G") == [
        [f"mlxlink -d {PCI} --speeds EDR --port_state TG"],
        [f"mlxlink -d {PCI} --speeds HDR,EDR,FDR,SDR --port_state TG"],
    ]
    with pytest.raises(UnhealthyError, match="HDR, EDR, FDR, SDR enabled, not 25G"):
        plan("nic.speed", "ib", speed="25G")
    assert connectx.enabled_speeds(printed("mlxlink_ethernet.txt"))[:2] == ["100G_2X", "100G_4X"]
    host.outputs["mlxlink"] = "-E- Device is not supported\n"
    with pytest.raises(UnhealthyError, match="lists no enabled speeds"):
        plan("nic.speed", "ib", speed="100G")


def test_a_pcie_link_is_trained_at_a_lower_speed_by_the_port_above_it(host):
    """Only the target speed's bits are written, and the link is trained after each change."""
    retrain = "setpci -s 0000:40:03.1 CAP_EXP+10.w=20:20"
    assert plan("nic.pcie", generation=1) == [
        ["setpci -s 0000:40:03.1 CAP_EXP+30.w=1:f", retrain],
        ["setpci -s 0000:40:03.1 CAP_EXP+30.w=4:f", retrain],
    ]
    with pytest.raises(UnhealthyError, match="generation 4 at most"):
        plan("nic.pcie", generation=4)
    host.outputs["setpci"] = "-\n"
    with pytest.raises(C4Error, match="invalid literal"):
        plan("nic.pcie", generation=1)


def test_the_floor_of_time_outs_is_the_only_field_that_is_written(host):
    """Every other field is left unselected, in both commands."""
    fields = [line.split()[0] for line in printed("mlxreg_roce_accl.txt").splitlines() if "_select" in line]
    selected = ",".join(f"{name}={int(name == 'min_ack_timeout_limit_disabled_field_select')}" for name in fields)
    command = f"mlxreg -d {PCI} --yes --reg_name ROCE_ACCL --set {selected},min_ack_timeout_limit_disabled="
    assert len(fields) == 9
    assert plan("nic.ack_floor") == [[f"{command}1"], [f"{command}0"]]
    with pytest.raises(UnhealthyError, match="has the floor of time-outs on already"):
        plan("nic.ack_floor", floor="on")
    host.outputs["mlxreg"] = host.outputs["mlxreg"].replace(f"{fields[4]}    | 0x00000001", f"{fields[4]} | 0x00000000")
    with pytest.raises(UnhealthyError, match="does not let the floor of time-outs be set"):
        plan("nic.ack_floor")
    host.outputs["mlxreg"] = "-E- Failed to open device\n"
    with pytest.raises(UnhealthyError, match="prints no fields of the register"):
        plan("nic.ack_floor")


def test_a_wrong_traffic_class_is_forced_and_taken_away(host):
    """The class that was forced before comes back, or none; equal ones are no fault."""
    path = host.sysfs / "infiniband/mlx5_0/tc/1/traffic_class"
    assert plan("nic.traffic_class", dscp=0) == [[f"echo 2 > {path}"], [f"echo -1 > {path}"]]
    host.write("infiniband/mlx5_0/tc/1/traffic_class", "Global tclass=106\nsrc_ip=10.0.0.1,tclass=8\n")
    assert plan("nic.traffic_class", dscp=8) == [[f"echo 34 > {path}"], [f"echo 106 > {path}"]]
    with pytest.raises(UnhealthyError, match="traffic class 106 for all packets already"):
        plan("nic.traffic_class", dscp=26)
    path.unlink()
    with pytest.raises(UnhealthyError, match="only the driver of NVIDIA's package"):
        plan("nic.traffic_class")


def test_congestion_control_is_switched_off_where_it_is_on(host):
    """Only priorities at which it was on are touched, at the ends that were asked for."""
    np, rp = (host.sysfs / f"net/{DEV}/ecn/{end}/enable/3" for end in ("roce_np", "roce_rp"))
    assert plan("nic.dcqcn") == [
        [f"echo 0 > {np}", f"echo 0 > {rp}"],
        [f"echo 1 > {np}", f"echo 1 > {rp}"],
    ]
    assert plan("nic.dcqcn", end="reaction")[0] == [f"echo 0 > {rp}"]
    rp.write_text("0\n")
    with pytest.raises(UnhealthyError, match="has DCQCN off already at its reaction point"):
        plan("nic.dcqcn", end="reaction")
    for path in (host.sysfs / f"net/{DEV}/ecn").rglob("[0-7]"):
        path.unlink()
    with pytest.raises(UnhealthyError, match="ROCE_CC_PRIO_MASK_P1 of mlxconfig"):
        plan("nic.dcqcn")


OF_A_PORT = (
    *("nic.speed", "nic.fec", "nic.port_off", "nic.pcie"),
    *("nic.qos", "nic.rate", "nic.trust", "nic.dcqcn", "nic.ack_floor"),
)


@pytest.mark.parametrize("fault", OF_A_PORT)
def test_a_nic_whose_port_belongs_to_another_is_refused(host, fault):
    """A bond's ports, the physical function of a virtual one and that of a subfunction have the settings."""
    device = host.sysfs / "infiniband/mlx5_0/device"
    (device / "physfn").symlink_to(host.sysfs / "devices/pci0000:40")
    with pytest.raises(UnhealthyError, match="h5/0 is a virtual function of pci0000:40"):
        plan(fault)
    (device / "physfn").unlink()
    host.write(f"net/{DEV}/bonding/slaves", "eth2 eth3\n")
    with pytest.raises(UnhealthyError, match="h5/0 is a bond of eth2, eth3"):
        plan(fault)
    (host.sysfs / f"net/{DEV}/bonding/slaves").unlink()
    device.unlink()
    (host.sysfs / "devices/mlx5_core.sf.4").mkdir()
    device.symlink_to(host.sysfs / "devices/mlx5_core.sf.4")
    with pytest.raises(UnhealthyError, match=r"h5/0 is no PCI function \(mlx5_core.sf.4\)"):
        plan(fault)


@pytest.mark.parametrize(
    ("fault", "tool", "package"),
    [
        ("nic.qos", "mlnx_qos", "mlnx-tools"),
        ("nic.trust", "mlnx_qos", "mlnx-tools"),
        ("nic.port_off", "mlxlink", "NVIDIA's MFT or mstflint"),
        ("nic.ack_floor", "mlxreg", "NVIDIA's MFT or mstflint"),
        ("nic.pcie", "setpci", "pciutils"),
        ("nic.speed", "ethtool", "ethtool"),
    ],
)
def test_a_tool_that_is_missing_is_named_with_its_package(host, fault, tool, package):
    """One line says what to install; nothing was asked of any other tool."""
    del host.outputs[tool]
    with pytest.raises(UnhealthyError, match=f"{tool} is not installed on this host; it is in {package}"):
        plan(fault)


@pytest.mark.usefixtures("host")
def test_a_tool_that_hangs_is_given_up(monkeypatch):
    """After its time it is killed and named, and no plan is made of its silence."""

    def hang(argv, **_):
        raise subprocess.TimeoutExpired(argv, 20.0)

    monkeypatch.setattr(connectx, "run", actions.run)
    monkeypatch.setattr(actions.subprocess, "run", hang)
    with pytest.raises(UnhealthyError, match=r"mlnx_qos: .* timed out after 20.0 seconds"):
        plan("nic.qos")


@pytest.mark.usefixtures("host")
def test_all_nics_of_a_host_are_switched_off():
    """A host's data is cut by its ports, since nothing drops RDMA packets with the links up."""
    other = msgspec.structs.replace(CONNECTX, index=1, netdev="enp65s0f1np1")
    nics = tuple(msgspec.structs.replace(target(), interface=nic) for nic in (CONNECTX, other))
    made = DRIVERS["mlxlink.data_cut"](FaultRequest("host.data_cut", "h5"), type("T", (), {"nics": nics}))
    assert len(made.apply) == len(made.revert) == made.sudden == 2
    assert made.claims == (f"link of {DEV}", "link of enp65s0f1np1")
    with pytest.raises(UnhealthyError, match="h5 has no NICs in the inventory"):
        DRIVERS["mlxlink.data_cut"](FaultRequest("host.data_cut", "h5"), type("T", (), {"nics": ()}))


@pytest.mark.parametrize(
    ("fault", "name", "before", "during", "change"),
    [
        ("nic.trust", "trusts_dscp", 1, 0, ("mlnx_qos", "state: dscp", "state: pcp")),
        ("nic.ack_floor", "floor_off", 0, 1, ("mlxreg", "disabled                 | 0x00000000", "disabled | 0x1")),
        ("nic.traffic_class", "traffic_class", -1, 2, "infiniband/mlx5_0/tc/1/traffic_class"),
        ("nic.dcqcn", "priorities", 2, 0, f"net/{DEV}/ecn"),
    ],
)  # fmt: skip
def test_a_setting_is_witnessed_as_it_reads_back(host, fault, name, before, during, change):
    """A driver that does nothing is not seen; the setting that it should leave is, and its return is recovery."""
    spec = CATALOGUE.specs[fault]
    request = msgspec.structs.replace(request_of(fault), witness_s=0.01)
    witness = WITNESSES[spec.witness](request)
    assert witness.before() == {name: before}
    assert witness.during(0.0).observed_s is None
    kept = dict(host.outputs)
    if isinstance(change, tuple):
        host.outputs[change[0]] = host.outputs[change[0]].replace(*change[1:])
    elif fault == "nic.dcqcn":
        for path in (host.sysfs / change).rglob("3"):
            path.write_text("0\n")
    else:
        host.write(change, "Global tclass=2\n")
    evidence = witness.during(0.0)
    assert evidence.values == {name: during}
    assert evidence.observed_s is not None
    assert witness.after().recovered is False
    host.outputs = kept
    if fault == "nic.traffic_class":
        host.write(change, "")
    for path in (host.sysfs / f"net/{DEV}/ecn").rglob("3"):
        path.write_text("1\n")
    assert witness.after().recovered is True


def test_settings_that_hardware_drivers_change_are_part_of_a_nics_listing(host, monkeypatch):
    """What a revert leaves of them is a residue; a tool that is missing adds nothing."""
    before = connectx.settings(CONNECTX)
    assert before["traffic class"] == ""
    assert "roce_np/3=1" in before["DCQCN"]
    host.outputs["mlnx_qos"] = host.outputs["mlnx_qos"].replace(
        "tc: 3 ratelimit: unlimited", "tc: 3 ratelimit: 25.0 Gbps"
    )
    host.write("infiniband/mlx5_0/tc/1/traffic_class", "Global tclass=2\n")
    changed = interfaces.difference(before, connectx.settings(CONNECTX))
    assert [line[:2] + line[2:].partition(":")[0] for line in changed] == ["- qos", "+ qos", "+ traffic class"]
    del host.outputs["mlnx_qos"]
    assert connectx.settings(CONNECTX)["qos"] == ""
    monkeypatch.setattr(interfaces, "run", lambda argv, *_: "[{}]" if "-json" in argv else "")
    assert interfaces.listing(CONNECTX)["traffic class"] == "Global tclass=2"
    (host.sysfs / "infiniband/mlx5_0/device/driver").unlink()
    assert "traffic class" not in interfaces.listing(CONNECTX)
