"""A drawn fabric as files that hosts and switches have saved: healthy, until a test changes a setting.

Its switches run SONiC, Cumulus Linux (NVUE) or EOS. Configurations are written from what the systems document.
"""

import json
import random
from dataclasses import dataclass, field
from pathlib import Path

PRIORITIES = 8
DSCPS = 64
_FLAGS = "BROADCAST,MULTICAST,UP,LOWER_UP"


@dataclass
class Nic:
    """A ConnectX NIC: what `mlnx_qos`, `show_gids`, `ip link` and /sys show of it."""

    netdev: str
    device: str
    address: str
    mtu: int
    pfc: set[int]
    map: list[int]
    trust: str = "dscp"
    dcqcn: dict[str, set[int]] = field(default_factory=dict)
    traffic_class: int | None = None
    gid_index: int | None = 3


@dataclass
class Port:
    """A port of a switch, and the far end of its cable."""

    name: str
    far: tuple[str, str]
    mtu: int
    pfc: set[int]
    watchdog: bool = True
    adaptive: bool = False
    marks: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    map: list[int] = field(default_factory=list)
    trust: str = "dscp"


@dataclass
class Fabric:
    """Hosts and switches by name; `dscp` and `priority` are those of the data, `system` is the switches'."""

    system: str
    dscp: int
    priority: int
    hosts: dict[str, list[Nic]]
    switches: dict[str, list[Port]]


NAMES = {"sonic": lambda n: f"Ethernet{4 * n}", "nvue": lambda n: f"swp{n + 1}", "eos": lambda n: f"Ethernet{n + 1}/1"}


def drawn(seed: int, system: str = "") -> Fabric:
    """A healthy fabric of two layers: sizes, system of the switches, priority, DSCP, MTU and thresholds are drawn."""
    draw = random.Random(seed)
    drawn_system = draw.choice(["sonic", "nvue", "eos"])
    named = NAMES[system or drawn_system]
    priority = draw.choice([3, 3, 4, 5])
    dscp = priority * 8 + draw.randrange(8)
    by_dscp = [number // 8 for number in range(DSCPS)]
    nic_mtu, port_mtu = draw.choice([(9000, 9100), (9000, 9216), (4200, 9100), (9000, 9000)])
    low = draw.choice([150_000, 250_000, 1_048_576])
    mark = (low, low * draw.choice([2, 4]), draw.choice([5, 100]))
    fixed = draw.choice([None, dscp << 2 | 2])
    leaves, spines, per_leaf = draw.randint(2, 3), draw.randint(2, 3), draw.randint(2, 4)
    hosts: dict[str, list[Nic]] = {}
    switches: dict[str, list[Port]] = {}

    def port(switch: str, far: tuple[str, str]) -> str:
        ports = switches.setdefault(switch, [])
        name = named(len(ports))
        marks = {priority: mark}
        ports.append(Port(name, far, port_mtu, {priority}, marks=marks, map=list(by_dscp)))
        return name

    for leaf in range(leaves):
        for number in range(per_leaf):
            host = f"gpu{leaf * per_leaf + number}"
            nic = Nic(
                "ens1f0np0", "mlx5_0", f"10.0.{leaf}.{number + 1}", nic_mtu, {priority}, list(by_dscp),
                dcqcn={"np": set(range(8)), "rp": set(range(8))}, traffic_class=fixed,
            )  # fmt: skip
            hosts[host] = [nic]
            port(f"leaf{leaf}", (host, nic.netdev))
        for spine in range(spines):
            near = named(len(switches[f"leaf{leaf}"]))
            far = port(f"spine{spine}", (f"leaf{leaf}", near))
            assert port(f"leaf{leaf}", (f"spine{spine}", far)) == near
    return Fabric(system or drawn_system, dscp, priority, hosts, switches)


def save(fabric: Fabric, folder: Path) -> None:
    """Write each device's outputs into a folder of its name."""
    for name, nics in fabric.hosts.items():
        outputs = {"rdma_link": _rdma_link(nics), "show_gids": _show_gids(nics), "ip_link": _ip_link(nics)}
        outputs |= {"sys": _sys(nics)} | {f"mlnx_qos_{nic.netdev}": _mlnx_qos(nic) for nic in nics}
        _write(folder / name, outputs)
    for name, ports in fabric.switches.items():
        _write(folder / name, _OUTPUTS[fabric.system](ports))


def _write(folder: Path, outputs: dict[str, str]) -> None:
    folder.mkdir(parents=True)
    for name, text in outputs.items():
        (folder / name).write_text(text)


def _rdma_link(nics: list[Nic]) -> str:
    return "".join(f"link {nic.device}/1 state ACTIVE physical_state LINK_UP netdev {nic.netdev} \n" for nic in nics)


def _show_gids(nics: list[Nic]) -> str:
    lines = ["DEV     PORT    INDEX   GID                   IPv4            VER     DEV", "---\t----\t-----"]
    for nic in nics:
        gids = {0: ("fe80:0000:0000:0000:0000:00ff:fe00:e100", "", "v1")}
        if nic.gid_index is not None:
            gids[nic.gid_index] = ("0000:0000:0000:0000:0000:ffff:0a00:0001", nic.address, "v2")
        for index, (gid, address, version) in gids.items():
            lines.append(f"{nic.device}\t1\t{index}\t{gid}\t{address}  \t{version}\t{nic.netdev}")
    return "\n".join(lines) + "\n"


def _ip_link(nics: list[Nic]) -> str:
    shown = [("lo", "LOOPBACK,UP,LOWER_UP", 65536, "UNKNOWN"), ("eno1", _FLAGS, 1500, "UP")]
    shown += [(nic.netdev, _FLAGS, nic.mtu, "UP") for nic in nics]
    return "".join(
        f"{number}: {name}: <{flags}> mtu {mtu} qdisc mq state {state} mode DEFAULT group default qlen 1000\n"
        for number, (name, flags, mtu, state) in enumerate(shown, 1)
    )


def _sys(nics: list[Nic]) -> str:
    lines = []
    for nic in nics:
        for end, on in nic.dcqcn.items():
            lines += [
                f"/sys/class/net/{nic.netdev}/ecn/roce_{end}/enable/{number}:{int(number in on)}"
                for number in range(PRIORITIES)
            ]
        if nic.traffic_class is not None:
            lines.append(f"/sys/class/infiniband/{nic.device}/tc/1/traffic_class:Global tclass={nic.traffic_class}")
    return "\n".join(lines) + "\n"


def _mlnx_qos(nic: Nic) -> str:
    lines = ["DCBX mode: OS controlled", f"Priority trust state: {nic.trust}"]
    if nic.trust == "dscp":
        lines.append("dscp2prio mapping:")
        for priority in range(PRIORITIES):
            own = [f"{dscp:02d}" for dscp, number in enumerate(nic.map) if number == priority]
            lines += [f"\tprio:{priority} dscp:{','.join(own[at : at + 8])}," for at in range(0, len(own), 8)]
    lines += ["PFC configuration:", "\tpriority    0   1   2   3   4   5   6   7"]
    lines += ["\tenabled     " + "   ".join(str(int(number in nic.pfc)) for number in range(PRIORITIES))]
    for number in range(PRIORITIES):
        lines += [f"tc: {number} ratelimit: unlimited, tsa: ets, bw: 12%", f"\t priority:  {number}"]
    return "\n".join(lines) + "\n"


def config_db(ports: list[Port]) -> dict:
    """CONFIG_DB with maps and profiles that ports share where they are alike."""
    tables: dict = {name: {} for name in ("PORT", "PORT_QOS_MAP", "QUEUE", "PFC_WD", "WRED_PROFILE", "DSCP_TO_TC_MAP")}
    tables["DEVICE_METADATA"] = {"localhost": {"hostname": "switch"}}
    for port in ports:
        tables["PORT"][port.name] = {"admin_status": "up", "mtu": str(port.mtu), "speed": "100000"}
        qos = {"pfc_enable": ",".join(map(str, sorted(port.pfc)))}
        if port.trust == "dscp":
            qos["dscp_to_tc_map"] = _shared(tables["DSCP_TO_TC_MAP"], {str(d): str(n) for d, n in enumerate(port.map)})
        tables["PORT_QOS_MAP"][port.name] = qos
        for number, (low, high, percent) in port.marks.items():
            profile = {"ecn": "ecn_all", "green_min_threshold": str(low), "green_max_threshold": str(high)}
            profile |= {"green_drop_probability": str(percent), "wred_green_enable": "true"}
            tables["QUEUE"][f"{port.name}|{number}"] = {"wred_profile": _shared(tables["WRED_PROFILE"], profile)}
        if port.watchdog:
            tables["PFC_WD"][port.name] = {"action": "drop", "detection_time": "200", "restoration_time": "200"}
    return tables


def _shared(table: dict, row: dict) -> str:
    """The name of a row, which is added unless the table has one like it."""
    name = next((name for name, known in table.items() if known == row), f"ROW{len(table)}")
    table[name] = row
    return name


def _lldp(ports: list[Port]) -> str:
    lines = ["LocalPort    RemoteDevice    RemotePortID    Capability    RemotePortDescr"]
    lines += ["-----------  --------------  --------------  ------------  -----------------"]
    lines += [f"{port.name:<11}  {port.far[0]:<14}  {port.far[1]:<14}  BR            {port.far[1]}" for port in ports]
    return "\n".join(lines) + "\n"


def nvue_config(ports: list[Port]) -> list:
    """`nv config show -o json` with a profile of each kind for each port."""
    qos: dict = {"mapping": {}, "pfc": {}, "congestion-control": {}}
    interfaces: dict = {"eth0": {"ip": {"address": {"dhcp": {}}}, "type": "eth"}}
    for port in ports:
        own: dict = {kind: {"profile": _shared(qos[kind], row)} for kind, row in _nvue_profiles(port).items()}
        own["pfc-watchdog"] = {"state": "enable" if port.watchdog else "disable"}
        interfaces[port.name] = {"link": {"mtu": port.mtu, "state": {"up": {}}}, "qos": own, "type": "swp"}
        if port.adaptive:
            interfaces[port.name]["router"] = {"adaptive-routing": {"enable": "on"}}
    qos["egress-queue-mapping"] = {
        "default-global": {"switch-priority": {str(n): {"traffic-class": n} for n in range(PRIORITIES)}}
    }
    header = {"model": "MSN3700C", "nvue-api-version": "nvue_v1", "version": "Cumulus Linux 5.9.1"}
    return [{"header": header}, {"set": {"interface": interfaces, "qos": qos, "system": {"hostname": "switch"}}}]


def _nvue_profiles(port: Port) -> dict:
    """The profiles by kind; PFC that is off does not pause."""
    on = "enable" if port.pfc else "disable"
    classes = {
        str(number): {"ecn": "enable", "min-threshold": low, "max-threshold": high, "probability": percent}
        for number, (low, high, percent) in port.marks.items()
    }
    mapped = {str(dscp): {"switch-priority": number} for dscp, number in enumerate(port.map)}
    return {
        "mapping": {"trust": "l3", "dscp": mapped},
        "pfc": {"switch-priority": {str(number): {} for number in port.pfc or {3}}, "tx": on, "rx": on},
        "congestion-control": {"traffic-class": classes},
    }


def eos_config(ports: list[Port]) -> str:
    """`show running-config` as text. The map of DSCPs is the switch's, that of its first port."""
    lines = ["! Command: show running-config", "! device: switch (DCS-7060X6, EOS-4.32.1F)", "!"]
    lines += [f"qos map dscp {dscp} to traffic-class {number}" for dscp, number in enumerate(ports[0].map)]
    for port in ports:
        lines += [f"interface {port.name}", f"   mtu {port.mtu}", "   no switchport", "   qos trust dscp"]
        lines += ["   priority-flow-control on"] if port.pfc else []
        lines += [f"   priority-flow-control priority {number} no-drop" for number in sorted(port.pfc)]
        lines += ["   priority-flow-control pause watchdog"] if port.watchdog else []
        for number, (low, high, percent) in port.marks.items():
            marking = f"minimum-threshold {low} bytes maximum-threshold {high} bytes max-mark-probability {percent}"
            lines += [f"   uc-tx-queue {number}", f"      random-detect ecn {marking} weight 0"]
        lines.append("!")
    return "\n".join([*lines, "interface Ethernet64/1", "!", "interface Management1", "   ip address 192.0.2.7/24", ""])


def _eos_lldp(ports: list[Port]) -> str:
    lines = ["Port          Neighbor Device ID       Neighbor Port ID    TTL"]
    lines += ["---------- ------------------------ ---------------------- ---"]
    lines += [f"{port.name:<10} {port.far[0]:<24} {port.far[1]:<22} 120" for port in ports]
    return "\n".join(lines) + "\n"


def _lldpctl(ports: list[Port]) -> str:
    return "".join(
        f"lldp.{port.name}.via=LLDP\nlldp.{port.name}.chassis.name={port.far[0]}\n"
        f"lldp.{port.name}.port.ifname={port.far[1]}\n"
        for port in ports
    )


_OUTPUTS = {
    "sonic": lambda ports: {"config_db.json": json.dumps(config_db(ports)), "lldp": _lldp(ports)},
    "nvue": lambda ports: {"config.json": json.dumps(nvue_config(ports)), "lldpctl": _lldpctl(ports)},
    "eos": lambda ports: {"running-config": eos_config(ports), "lldp": _eos_lldp(ports)},
}
