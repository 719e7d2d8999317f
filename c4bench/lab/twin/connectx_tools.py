#!/usr/bin/python3 -IS
"""The programs of a ConnectX on a host of the lab: `mlnx_qos`, `mlxlink`, `mlxreg`, `ethtool`, `devlink`, `setpci`.

This file is copied to a host under each of these names; it must run with the standard library alone. What they set
acts on the NIC: its wire, in a network namespace of its own, and its RDMA device. What they print has the form of the
real ones', and they refuse what they do not know.
"""

import ctypes
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn

HOME = Path("/run/connectx")
NICS, INSIDE = HOME / "nics.json", HOME / "inside"
_FLOOR = Path("/sys/module/rdma_rxe/parameters/floor_off")
_PFC = Path("/proc/thread-self/net/pfc")
_CLASSES, _DSCPS = 8, 64
_CLONE_NEWNET = 0x40000000
_SPEEDS = {1000: "KX", 10000: "KR", 25000: "CR", 40000: "CR4", 50000: "CR2", 100000: "CR4"}
# What a PCIe link of 16 lanes carries, by generation: its name, and Mbit/s after coding (8b/10b, then 128b/130b).
_PCIE = {1: ("2.5", 32000), 2: ("5.0", 64000), 3: ("8.0", 126000), 4: ("16.0", 252000)}
_NEWEST = max(_PCIE)
# Link Control 2, whose low four bits are the target speed, and Link Control, whose bit 5 retrains the link.
_TARGET, _CONTROL = "CAP_EXP+30.w", "CAP_EXP+10.w"
# The switch's ports use RS. A NIC that is set to another code has no link.
_SWITCHS_FEC = ("auto", "rs")
_FEC = {"off": "Off", "rs": "RS", "baser": "BaseR", "auto": "Auto"}


class Stop(Exception):  # noqa: N818  (it ends a program)
    """The program ends with this text and exit code."""

    def __init__(self, text: str, code: int = 1) -> None:
        super().__init__(text)
        self.code = code


class Nic:
    """One NIC: its names, and what its driver and firmware have been set to, which a restart of the host forgets."""

    def __init__(self, row: dict[str, object]) -> None:
        self.netdev, self.device, self.pci, self.wire = (str(row[key]) for key in ("netdev", "device", "pci", "wire"))
        self.far_namespace, self.far_interface = str(row["far_namespace"]), str(row["far_interface"])
        self.above, self.rate_mbps = str(row["above"]), int(str(row["rate_mbps"]))
        self._file = HOME / f"{self.netdev}.json"
        kept = json.loads(self._file.read_text()) if self._file.exists() else {}
        self.trust: str = kept.get("trust", "dscp")
        self.priorities: dict[int, int] = {int(key): value for key, value in kept.get("priorities", _usual()).items()}
        self.floor_off: bool = kept.get("floor_off", row["floor_off"])
        self.lossless: list[int] = kept.get("lossless", row["lossless"])
        self.negotiates: bool = kept.get("negotiates", True)
        self.speed_mbps: int = kept.get("speed_mbps", self.rate_mbps)
        self.fec: str = kept.get("fec", "auto")
        self.generation: int = kept.get("generation", _NEWEST)
        self.target_generation: int = kept.get("target_generation", _NEWEST)

    def save(self) -> None:
        """Keep the settings until the host restarts."""
        link = ("negotiates", "speed_mbps", "fec", "generation", "target_generation")
        names = ("trust", "priorities", "lossless", "floor_off", *link)
        self._file.write_text(json.dumps({name: getattr(self, name) for name in names}))

    def inside(self) -> None:
        """Enter the namespace of the NIC's wire, for the rest of the program."""
        enter(INSIDE)


def enter(namespace: Path) -> None:
    """Enter a network namespace. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    with namespace.open() as opened:
        if libc.setns(opened.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(namespace))


def _usual() -> dict[str, int]:
    return {str(dscp): dscp // _CLASSES for dscp in range(_DSCPS)}


def nics() -> list[Nic]:
    """The host's ConnectX NICs."""
    return [Nic(row) for row in json.loads(NICS.read_text())]


def nic_of(name: str, said: str) -> Nic:
    """The NIC with that interface, RDMA device or PCI address. Stops with `said` where there is none."""
    for nic in nics():
        if name in (nic.netdev, nic.device, nic.pci, f"pci/{nic.pci}"):
            return nic
    raise Stop(said)


def option(words: Sequence[str], *names: str) -> str | None:
    """The value after one of these options; None where none is given."""
    for place, word in enumerate(words):
        if word in names:
            if place + 1 == len(words):
                raise Stop(f"option {word} requires an argument", 2)
            return words[place + 1]
        for name in names:
            if name.startswith("--") and word.startswith(f"{name}="):
                return word[len(name) + 1 :]
    return None


def ip(*words: str) -> str:
    """What `ip` or `tc` prints, in the namespace that this program has entered."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Stop(done.stderr.strip())
    return done.stdout


def put(text: str) -> None:
    """Print a line."""
    sys.stdout.write(f"{text}\n")


class Queues:
    """The priorities of a NIC's wire, which the lab's kernel keeps where the fabric has PFC."""

    def __init__(self, wire: str) -> None:
        self._wire = wire
        rows = [line.split() for line in _PFC.read_text().splitlines()] if _PFC.exists() else []
        self._rows = [row[1:] for row in rows if row[0] == wire]

    @property
    def there(self) -> bool:
        """Whether the wire has queues by priority."""
        return bool(self._rows)

    def rates_bps(self) -> list[int]:
        """The limit of each priority, 0 for none."""
        rows = {int(row[1]): int(row[row.index("shape") + 1]) for row in self._rows if row[0] == "priority"}
        return [rows.get(number, 0) for number in range(_CLASSES)]

    def lossless(self) -> list[int]:
        """The priorities that have PFC."""
        settings = next(row for row in self._rows if row[0] == "settings")
        mask = int(settings[settings.index("lossless") + 1])
        return [number for number in range(_CLASSES) if mask >> number & 1]

    def set(self, *lines: str) -> None:
        """Write settings, a line each."""
        for line in lines:
            _PFC.write_text(f"{self._wire} {line}\n")


def mlnx_qos(words: Sequence[str]) -> None:
    """`mlnx_qos -i NETDEV [-a] [-r RATES] [-f PFC] [--trust pcp|dscp] [--dscp2prio set|del,DSCP,PRIORITY]`."""
    nic = nic_of(option(words, "-i", "--interface") or "", "Interface does not exist")
    nic.inside()
    queues = Queues(nic.wire)
    if rates := option(words, "-r", "--ratelimit"):
        _limit(queues, rates)
    if lossless := option(words, "-f", "--pfc"):
        _set_lossless(nic, queues, lossless)
    if trust := option(words, "--trust"):
        _set_trust(nic, trust)
    if change := option(words, "--dscp2prio"):
        _map_dscp(nic, change)
    if (trust or change) and queues.there:
        queues.set(*(f"dscp {dscp} {_priority(nic, dscp)}" for dscp in range(_DSCPS)))
    nic.save()
    _show_qos(nic, Queues(nic.wire))


def _limit(queues: Queues, rates: str) -> None:
    values = rates.split(",")
    if len(values) > _CLASSES or not all(value.isdigit() for value in values):
        raise Stop("ratelimit: whole Gbps, one for each traffic class", 2)
    if not queues.there:
        put("Rate limit is not supported on your system!")
        return
    queues.set(*(f"shape {number} {int(value) * 10**9}" for number, value in enumerate(values)))


def _set_lossless(nic: Nic, queues: Queues, enabled: str) -> None:
    """In a fabric without PFC it is a setting that nothing follows."""
    values = enabled.split(",")
    if len(values) != _CLASSES or set(values) - {"0", "1"}:
        raise Stop("pfc: eight of 0 and 1", 2)
    nic.lossless = [number for number, value in enumerate(values) if value == "1"]
    if queues.there:
        queues.set(f"lossless {sum(1 << number for number in nic.lossless)}")


def _set_trust(nic: Nic, trust: str) -> None:
    if trust not in ("pcp", "dscp"):
        raise Stop(f"trust: invalid choice: {trust}", 2)
    if trust != nic.trust:
        nic.priorities = {int(dscp): priority for dscp, priority in _usual().items()} if trust == "dscp" else {}
    nic.trust = trust


def _map_dscp(nic: Nic, change: str) -> None:
    match = re.fullmatch(r"(set|del),(\d{1,2}),([0-7])", change)
    if not match or int(match[2]) >= _DSCPS:
        raise Stop(f"dscp2prio: invalid value: {change}", 2)
    dscp, priority = int(match[2]), int(match[3])
    if match[1] == "set":
        nic.trust, nic.priorities[dscp] = "dscp", priority
    elif nic.priorities.get(dscp) == priority:
        del nic.priorities[dscp]


def _priority(nic: Nic, dscp: int) -> int:
    return nic.priorities.get(dscp, 0) if nic.trust == "dscp" else 0


def _show_qos(nic: Nic, queues: Queues) -> None:
    put("DCBX mode: OS controlled")
    put(f"Priority trust state: {nic.trust}")
    if nic.trust == "dscp":
        put("dscp2prio mapping:")
        for priority in range(_CLASSES):
            mapped = sorted(dscp for dscp, of in nic.priorities.items() if of == priority)
            for start in range(0, len(mapped), _CLASSES):
                put(f"\tprio:{priority} dscp:{''.join(f'{dscp:02d},' for dscp in mapped[start : start + _CLASSES])}")
    else:
        put("default priority:")
    put("Cable len: 7")
    put("PFC configuration:")
    put("\tpriority    0   1   2   3   4   5   6   7")
    lossless = queues.lossless() if queues.there else nic.lossless
    put(f"\tenabled     {''.join(f'{int(number in lossless):<4}' for number in range(_CLASSES))}")
    for number, rate_bps in enumerate(queues.rates_bps()):
        limit = f"{rate_bps / 1e9:.1f} Gbps" if rate_bps else "unlimited"
        put(f"tc: {number} ratelimit: {limit}, tsa: vendor")
        put(f"\t priority:  {number}")


def mlxlink(words: Sequence[str]) -> None:
    """`mlxlink -d DEVICE [--port_state UP|DN|TG]`."""
    nic = nic_of(option(words, "-d", "--device") or "", "-E- Failed to open device")
    nic.inside()
    state = option(words, "-a", "--port_state")
    known = {"-d", "--device", "-a", "--port_state", "-p", "--port"}
    if other := next((word for word in words if word.startswith("-") and word.partition("=")[0] not in known), ""):
        raise Stop(f"-E- invalid argument: {other}")
    if state:
        for change in {"UP": ("up",), "DN": ("down",), "TG": ("down", "up")}.get(state, ()):
            ip("ip", "link", "set", nic.wire, change)
        if state not in ("UP", "DN", "TG"):
            raise Stop(f"-E- invalid port state: {state}")
        return
    _show_port(nic)


def _show_port(nic: Nic) -> None:
    up, carrier = _link(nic)
    gigabits = f"{nic.speed_mbps // 1000}G"
    polls = up or nic.fec not in _SWITCHS_FEC
    state, physical = ("Active", "LinkUp") if carrier else ("Polling", "Polling") if polls else ("Disable", "Disabled")
    supported = ",".join(f"{mbps // 1000}G" for mbps in sorted(_SPEEDS, reverse=True) if mbps <= nic.rate_mbps)
    rows = (
        ("Operational Info", ("State", state), ("Physical state", physical), ("Speed", gigabits if carrier else "N/A")),
        ("Supported Info", ("Enabled Link Speed (Ext.)", f"0x000007f2 ({supported})")),
        ("Troubleshooting Info", ("Status Opcode", "0"), ("Recommendation", "No issue was observed")),
        ("Tool Information", ("Firmware Version", "20.43.4100")),
    )
    for title, *lines in rows:
        put(f"\n{title}\n{'-' * len(title)}")
        for name, value in lines:
            put(f"{name:<35}: {value}")


def _link(nic: Nic) -> tuple[bool, bool]:
    """Whether the wire is up, and whether it has a carrier, in its namespace."""
    flags = json.loads(ip("ip", "-json", "link", "show", "dev", nic.wire))[0]["flags"]
    return "UP" in flags, "LOWER_UP" in flags


_SELECTED = (
    "roce_adp_retrans",
    "roce_tx_window",
    "roce_slow_restart",
    "roce_slow_restart_idle",
    "min_ack_timeout_limit_disabled",
    "adaptive_routing_forced_en",
    "selective_repeat_forced_en",
    "dc_half_handshake_en",
    "ack_dscp_force",
)
_ONE_FIELD = "min_ack_timeout_limit_disabled"


def mlxreg(words: Sequence[str]) -> None:
    """`mlxreg -d DEVICE --yes --reg_name ROCE_ACCL --get`, and `--set FIELDS` for the floor of time-outs."""
    nic = nic_of(option(words, "-d", "--device") or "", "-E- Failed to open device")
    if option(words, "--reg_name") != "ROCE_ACCL":
        raise Stop("-E- this NIC knows the register ROCE_ACCL")
    changes = option(words, "--set", "-s")
    put("Sending access register...\n")
    if changes is None:
        _show_register(nic)
        return
    fields = dict(field.partition("=")[::2] for field in changes.split(","))
    if fields.get(f"{_ONE_FIELD}_field_select") == "1":
        wanted = fields.get(_ONE_FIELD, "0")
        if wanted not in ("0", "1"):
            raise Stop("-E- Failed to send access register: bad parameter")
        _FLOOR.write_text(f"{nic.netdev} {wanted}\n")
        nic.floor_off = wanted == "1"
        nic.save()
    if other := next(
        (name for name in fields if name.endswith("_select") and fields[name] == "1" and _ONE_FIELD not in name), ""
    ):
        raise Stop(f"-E- Failed to send access register: {other} is not supported")


def _show_register(nic: Nic) -> None:
    put(f"{'Field Name':<47}| Data\n{'=' * 60}")
    for name in _SELECTED:
        put(f"{name + '_field_select':<47}| 0x{int(name == _ONE_FIELD):08x}")
    values = {"roce_adp_retrans_en": not nic.floor_off, _ONE_FIELD: nic.floor_off}
    for name in (*(f"{name}_en" for name in _SELECTED[:4]), *_SELECTED[4:], "ack_dscp"):
        put(f"{name:<47}| 0x{int(values.get(name, False)):08x}")
    put("=" * 60)


def ethtool(words: Sequence[str]) -> None:
    """`ethtool NETDEV`, `-i`, `-S`, `--show-fec`, `--set-fec NETDEV encoding FEC`, `-s NETDEV speed N autoneg off`."""
    calls: dict[str, Callable[[Nic, Sequence[str]], None]] = {
        "-i": _driver,
        "--driver": _driver,
        "-S": _statistics,
        "--statistics": _statistics,
        "--show-fec": _show_fec,
        "--set-fec": _set_fec,
        "-s": _set_link,
        "--change": _set_link,
    }
    if len(words) == 1 and not words[0].startswith("-"):
        _settings(_port(words[0]))
    elif len(words) > 1 and words[0] in calls:
        calls[words[0]](_port(words[1]), words[2:])
    else:
        raise Stop("ethtool: bad command line argument(s)\nFor more information run ethtool -h")


def _port(name: str) -> Nic:
    return nic_of(name, f"netlink error: no device matches name ({name})\nCannot get device settings: No such device")


def _driver(nic: Nic, _: Sequence[str]) -> None:
    for name, value in (
        ("driver", "mlx5_core"),
        ("version", os.uname().release),
        ("firmware-version", "20.43.4100 (MT_0000000223)"),
        ("expansion-rom-version", ""),
        ("bus-info", nic.pci),
        ("supports-statistics", "yes"),
        ("supports-test", "no"),
        ("supports-eeprom-access", "no"),
        ("supports-register-dump", "no"),
        ("supports-priv-flags", "no"),
    ):
        put(f"{name}: {value}")


def _modes(nic: Nic) -> list[str]:
    return [f"{mbps}base{kind}/Full" for mbps, kind in _SPEEDS.items() if mbps <= nic.rate_mbps]


def _settings(nic: Nic) -> None:
    supported = _modes(nic)
    advertised = (
        supported if nic.negotiates else [mode for mode in supported if mode.startswith(f"{nic.speed_mbps}base")]
    )
    carrier = Path(f"/sys/class/net/{nic.netdev}/operstate").read_text().strip() == "up"
    put(f"Settings for {nic.netdev}:\n\tSupported ports: [ FIBRE ]")
    _list("Supported link modes:", supported)
    put(
        "\tSupported pause frame use: Symmetric\n\tSupports auto-negotiation: Yes\n"
        "\tSupported FEC modes: None\t RS\t BASER"
    )
    _list("Advertised link modes:", advertised)
    put(f"\tAdvertised auto-negotiation: {'Yes' if nic.negotiates else 'No'}")
    put(f"\tSpeed: {f'{nic.speed_mbps}Mb/s' if carrier else 'Unknown!'}\n\tDuplex: Full")
    put(f"\tAuto-negotiation: {'on' if nic.negotiates else 'off'}\n\tPort: Direct Attach Copper")
    put(f"\tPHYAD: 0\n\tTransceiver: internal\n\tLink detected: {'yes' if carrier else 'no'}")


def _list(title: str, modes: Sequence[str]) -> None:
    for place, mode in enumerate(modes):
        put(f"\t{title if place == 0 else '':<24}{mode}")


def _set_link(nic: Nic, words: Sequence[str]) -> None:
    """Both ends of the link change their rate, as after training."""
    wanted = dict(zip(words[::2], words[1::2], strict=False))
    if set(wanted) - {"speed", "autoneg", "duplex"} or len(words) % 2:
        raise Stop("ethtool: bad command line argument(s)")
    nic.negotiates = wanted.get("autoneg", "off") == "on"
    speed = wanted.get("speed", str(nic.rate_mbps if nic.negotiates else nic.speed_mbps))
    if not speed.isdigit() or int(speed) not in _SPEEDS or int(speed) > nic.rate_mbps:
        raise Stop("netlink error: Invalid argument")
    nic.speed_mbps = int(speed)
    nic.save()
    Path(f"/sys/class/net/{nic.netdev}/speed").write_text(f"{nic.speed_mbps}\n")
    nic.inside()
    _train(nic)
    enter(Path(nic.far_namespace))
    _shape(nic.far_interface, nic.speed_mbps)


def _train(nic: Nic) -> None:
    """Send as fast as both the link and the PCIe link allow."""
    _shape(nic.wire, min(nic.speed_mbps, _PCIE[nic.generation][1]))


def _shape(interface: str, mbps: int) -> None:
    root = next(
        row for row in json.loads(ip("tc", "-raw", "-json", "qdisc", "show", "dev", interface)) if row.get("root")
    )
    old = root["options"]
    seconds = int(old["burst_raw"], 16) * 64e-9
    burst = max(5000, round(seconds * old["rate"]))
    rate = f"{mbps * 10**6}bit"
    ip(
        "tc",
        "qdisc",
        "change",
        "dev",
        interface,
        "root",
        "tbf",
        "rate",
        rate,
        "burst",
        f"{burst}",
        "limit",
        f"{old['limit']}",
    )


def _show_fec(nic: Nic, _: Sequence[str]) -> None:
    active = "RS" if nic.fec == "auto" else _FEC[nic.fec]
    put(
        f"FEC parameters for {nic.netdev}:\nSupported/Configured FEC encodings: {_FEC[nic.fec]}\n"
        f"Active FEC encoding: {active}"
    )


def _set_fec(nic: Nic, words: Sequence[str]) -> None:
    if len(words) < 2 or words[0] != "encoding" or words[1] not in _FEC:
        raise Stop("ethtool: bad command line argument(s)")
    nic.fec = words[1]
    nic.save()
    nic.inside()
    ip("ip", "link", "set", nic.wire, "up" if nic.fec in _SWITCHS_FEC else "down")


def _statistics(nic: Nic, _: Sequence[str]) -> None:
    """The interface's own, then by mlx5's names what the lab's kernel counts of the wire."""
    put("NIC statistics:")
    for name, value in (*_interface_counters(nic.netdev), *_wire_counters(nic)):
        put(f"     {name}: {value}")


def _interface_counters(netdev: str) -> Iterator[tuple[str, int]]:
    own = Path(f"/sys/class/net/{netdev}/statistics")
    for name in ("rx_packets", "rx_bytes", "tx_packets", "tx_bytes"):
        yield name, int((own / name).read_text())


_OF_WIRE = {
    "rx_packets_phy": ("stats64", "rx", "packets"),
    "tx_packets_phy": ("stats64", "tx", "packets"),
    "rx_bytes_phy": ("stats64", "rx", "bytes"),
    "tx_bytes_phy": ("stats64", "tx", "bytes"),
    "rx_discards_phy": ("stats64", "rx", "dropped"),
    "rx_crc_errors_phy": ("stats64", "rx", "crc_errors"),
    "tx_errors_phy": ("stats64", "tx", "errors"),
    "link_down_events_phy": ("carrier_down_count",),
}


def _wire_counters(nic: Nic) -> Iterator[tuple[str, int]]:
    nic.inside()
    found = json.loads(ip("ip", "-json", "-s", "-s", "-d", "link", "show", "dev", nic.wire))[0]
    for name, keys in _OF_WIRE.items():
        value = found
        for key in keys:
            value = value.get(key, 0) if isinstance(value, dict) else 0
        yield name, int(value)
    yield (
        "tx_discards_phy",
        sum(
            int(row["drops"])
            for row in json.loads(ip("tc", "-s", "-json", "qdisc", "show", "dev", nic.wire))
            if row.get("root")
        ),
    )
    for row in (line.split() for line in (_PFC.read_text().splitlines() if _PFC.exists() else [])):
        if row[0] == nic.wire and row[1] == "priority":
            values = dict(zip(row[3::2], row[4::2], strict=False))
            for way in ("rx", "tx"):
                yield f"{way}_prio{row[2]}_pause", int(values[f"{way}_pause"])
                yield f"{way}_prio{row[2]}_pause_duration", int(values[f"{way}_pause_us"])
            yield f"tx_prio{row[2]}_discards", int(values["dropped"])


def devlink(words: Sequence[str]) -> None:
    """`devlink dev show`, `devlink dev info`, `devlink port show`, of all NICs."""
    match list(words[:2]):
        case ["dev"] | ["dev", "show"]:
            for nic in nics():
                put(f"pci/{nic.pci}")
        case ["dev", "info"]:
            for nic in nics():
                put(f"pci/{nic.pci}:\n  driver mlx5_core\n  versions:\n      fixed:\n        fw.psid MT_0000000223")
                put("      running:\n        fw.version 20.43.4100\n        fw 20.43.4100")
        case ["port"] | ["port", "show"]:
            for nic in nics():
                put(f"pci/{nic.pci}/65535: type eth netdev {nic.netdev} flavour physical port 0 splittable false")
        case _:
            raise Stop(f"devlink answers: Operation not supported ({' '.join(words)})")


def setpci(words: Sequence[str]) -> None:
    """`setpci -s PORT CAP_EXP+30.w[=VALUE:MASK]`, and `CAP_EXP+10.w=20:20` of the port above a NIC."""
    above = option(words, "-s") or ""
    nic = next((nic for nic in nics() if nic.above == above), None)
    register, equals, change = (words[2] if len(words) == 3 else "").partition("=")
    if nic is None or register not in (_TARGET, _CONTROL):
        raise Stop(f"setpci: no register {register} of {above} here")
    if not equals:
        put(f"{nic.target_generation if register == _TARGET else 0:04x}")
        return
    value, mask = (int(part, 16) for part in change.split(":"))
    if register == _TARGET:
        nic.target_generation = nic.target_generation & ~mask | value & mask
    elif value & mask & 0x20:
        nic.generation = min(max(nic.target_generation, 1), _NEWEST)
        speed = Path(f"/sys/class/net/{nic.netdev}/device/current_link_speed")
        speed.write_text(f"{_PCIE[nic.generation][0]} GT/s PCIe\n")
        nic.inside()
        _train(nic)
    nic.save()


PROGRAMS: dict[str, Callable[[Sequence[str]], None]] = {
    "mlnx_qos": mlnx_qos,
    "mlxlink": mlxlink,
    "mlxreg": mlxreg,
    "ethtool": ethtool,
    "devlink": devlink,
    "setpci": setpci,
}


def main(argv: Sequence[str]) -> NoReturn:
    """Run the program whose name this has been called by."""
    try:
        PROGRAMS[argv[0].rpartition("/")[2]](argv[1:])
        code = 0
    except Stop as stop:
        sys.stderr.write(f"{stop}\n")
        code = stop.code
    except OSError as error:
        sys.stderr.write(f"{error.filename or argv[0]}: {error.strerror}\n")
        code = 1
    sys.exit(code)


if __name__ == "__main__":
    main(sys.argv)
