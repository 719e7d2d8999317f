"""The settings of ConnectX NICs: what their tools print, as facts, and the rules of what may be changed.

Tools differ by version: `mlnx_qos` of OFED 4 to 24, `ethtool` with and without --json, `mlxlink` and `mlxreg` of MFT or
the same of mstflint. Text that is none of these is refused with the tool's name; so is a NIC whose port's settings are
those of another interface.
"""

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import msgspec

from c4bench.decoding import DecodingError, json_in
from c4bench.errors import UnhealthyError
from c4bench.inject.actions import run
from c4bench.model.fault import Interface

SYSFS = Path("/sys/class")
CLASSES = 8
_DSCPS = 64
_PCI = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
# Tools of NVIDIA's MFT, and those of mstflint that take the same arguments and print the same.
_SAME = {"mlxlink": "mstlink", "mlxreg": "mstreg"}
_PACKAGES = {
    "mlnx_qos": "mlnx-tools",
    "dcb": "iproute2",
    "mlxlink": "NVIDIA's MFT or mstflint",
    "mlxreg": "NVIDIA's MFT or mstflint",
    "ethtool": "ethtool",
    "setpci": "pciutils",
}


def tool(name: str) -> str:
    """The name under which a tool is here. Raises UnhealthyError that says which package has it."""
    for candidate in (name, _SAME.get(name, name)):
        if shutil.which(candidate):
            return candidate
    raise UnhealthyError(f"{name} is not installed on this host; it is in {_PACKAGES[name]}")


def ask(*argv: str) -> str:
    """What a tool prints. Raises UnhealthyError where it is missing, refuses or hangs."""
    return run((tool(argv[0]), *argv[1:]), None)


def require_own_port(interface: Interface) -> None:
    """Raises UnhealthyError for a NIC whose port's settings belong to another interface."""
    bond = _read(SYSFS / "net" / interface.netdev / "bonding/slaves")
    if bond:
        raise UnhealthyError(
            f"{interface.name} is a bond of {', '.join(bond.split())}, whose ports have settings of their own; "
            "change these by hand, or name a NIC that is no bond"
        )
    device = SYSFS / "infiniband" / interface.device / "device"
    if (device / "physfn").exists():
        raise UnhealthyError(
            f"{interface.name} is a virtual function of {(device / 'physfn').resolve().name}, which has the port; "
            "name a NIC that is a physical function"
        )
    pci_address(interface)


def pci_address(interface: Interface) -> str:
    """Such as `0000:41:00.0`. Raises UnhealthyError for a device that is no PCI function."""
    name = (SYSFS / "infiniband" / interface.device / "device").resolve().name
    if not _PCI.fullmatch(name):
        raise UnhealthyError(f"{interface.name} is no PCI function ({name}); name a NIC that is a physical function")
    return name


def _read(path: Path) -> str:
    """A kernel file's text, "" where it cannot be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


class Qos(msgspec.Struct, frozen=True):
    """What `mlnx_qos` prints of an interface.

    `trust` is `dscp` or `pcp`, "" where it is not supported. `priorities` has the priority of each DSCP that has one.
    `limits_gbps` are those of the traffic classes, 0 for none; `by_firmware`: firmware negotiates all this with the
    switch (DCBX), and may undo what is set.
    """

    trust: str
    priorities: dict[int, int]
    limits_gbps: tuple[float, ...]
    by_firmware: bool


_LIMIT = re.compile(r"^tc: ([0-7]) ratelimit: (unlimited|(\d{1,7}(?:\.\d{1,6})?) (Gbps|Mbps))", re.MULTILINE)
_MAPPED = re.compile(r"prio:(\d) dscp:((?:\d\d?,)*\d{0,2})")


def read_qos(netdev: str) -> Qos:
    """That of an interface here, with the classes that no priority has (-a). Raises UnhealthyError as `ask` does."""
    return parse_qos(ask("mlnx_qos", "-i", netdev, "-a"))


def parse_qos(text: str) -> Qos:
    """The facts in what `mlnx_qos -a` prints. Raises UnhealthyError when not all eight traffic classes are there."""
    limits = {
        int(number): 0.0 if limit == "unlimited" else float(value) / (1000 if unit == "Mbps" else 1)
        for number, limit, value, unit in _LIMIT.findall(text)
    }
    if sorted(limits) != list(range(CLASSES)):
        raise UnhealthyError(
            f"mlnx_qos lists the limits of {len(limits)} traffic classes, not {CLASSES}; is its version supported?"
        )
    trust = (text.partition("Priority trust state:")[2].split() or [""])[0]
    mapped = [(int(dscp), int(prio)) for prio, row in _MAPPED.findall(text) for dscp in row.split(",") if dscp]
    return Qos(
        trust if trust in {"dscp", "pcp"} else "",
        {dscp: priority for dscp, priority in mapped if dscp < _DSCPS},
        tuple(limits[number] for number in range(CLASSES)),
        "DCBX mode: Firmware controlled" in text,
    )


def trusts_dscp(netdev: str) -> bool:
    """Whether an interface here takes priorities from DSCPs. Raises UnhealthyError as `ask` does."""
    if shutil.which("mlnx_qos") or not shutil.which("dcb"):
        return read_qos(netdev).trust == "dscp"
    return bool(read_dcb_dscp(netdev))


def corrections(priorities: dict[int, int]) -> list[str]:
    """The arguments of `--dscp2prio` that give these priorities to DSCPs that have just got those of `--trust dscp`.

    That gives DSCP n priority n // 8 with the kernel's own driver; NVIDIA's keeps what it had.
    """
    usual = {dscp: dscp // CLASSES for dscp in range(_DSCPS)}
    lost = [f"del,{dscp},{priority}" for dscp, priority in usual.items() if dscp not in priorities]
    return lost + [f"set,{dscp},{priority}" for dscp, priority in sorted(priorities.items()) if usual[dscp] != priority]


def read_dcb_dscp(netdev: str) -> list[tuple[int, int]]:
    """The DSCPs of an interface here that have a priority, and it. Raises UnhealthyError as `ask` does."""
    return parse_dcb_dscp(ask("dcb", "-N", "-j", "app", "show", "dev", netdev, "dscp-prio"))


def parse_dcb_dscp(text: str) -> list[tuple[int, int]]:
    """The pairs of DSCP and priority in `dcb -N -j app show dev NETDEV dscp-prio`. Raises UnhealthyError for others."""
    try:
        rows = json_in(text or "{}", _DcbApp).dscp_prio
    except DecodingError as error:
        raise UnhealthyError(f"dcb printed what c4bench cannot read ({error}); is its version supported?") from None
    return sorted((dscp, priority) for dscp, priority in rows if dscp < _DSCPS and priority < CLASSES)


class _DcbApp(msgspec.Struct, frozen=True):
    dscp_prio: tuple[tuple[int, int], ...] = ()


class Link(msgspec.Struct, frozen=True):
    """What `ethtool` prints of an interface: Mbit/s, 0 while it has no link; link modes such as `100000baseCR4/Full`.

    `supported_fec` are words that `--set-fec` takes: `off`, `rs`, `baser`, `llrs`.
    """

    speed_mbps: int
    negotiates: bool
    supported: tuple[str, ...]
    advertised: tuple[str, ...]
    supported_fec: tuple[str, ...]


_MODE = re.compile(r"\d+base\S+/\S+")
_NO_SPEED_MBPS = 1 << 31


def read_link(netdev: str) -> Link:
    """That of an interface here. Raises UnhealthyError as `ask` does."""
    return parse_link(_ask_ethtool(netdev))


def _ask_ethtool(*argv: str) -> str:
    """What `ethtool` prints, as JSON where its version can."""
    try:
        return ask("ethtool", "--json", *argv)
    except UnhealthyError:
        return ask("ethtool", *argv)


def parse_link(text: str) -> Link:
    """The facts in what `ethtool NETDEV` prints, with or without --json. Raises UnhealthyError for anything else."""
    if text.lstrip().startswith("["):
        found = _first_row(text)
        speed = found.get("speed")
        return Link(
            speed if isinstance(speed, int) and 0 < speed < _NO_SPEED_MBPS else 0,
            found.get("auto-negotiation") in (True, "on"),
            _words(found, "supported-link-modes"),
            _words(found, "advertised-link-modes"),
            _fec_words(" ".join(_words(found, "supported-fec-modes"))),
        )
    if "Supported link modes:" not in text:
        raise UnhealthyError("ethtool printed no settings of a link; is its version supported?")
    speed_text = re.search(r"Speed: (\d{1,9})Mb/s", text)
    fec = re.search(r"Supported FEC modes:(.*)", text)
    return Link(
        int(speed_text[1]) if speed_text else 0,
        "Auto-negotiation: on" in text,
        _modes(text, "Supported link modes"),
        _modes(text, "Advertised link modes"),
        _fec_words(fec[1]) if fec else (),
    )


def _modes(text: str, title: str) -> tuple[str, ...]:
    """The link modes after a title: on the rest of its line, and on the indented lines below it."""
    _, _, rest = text.partition(f"{title}:")
    listed: list[str] = []
    for line in rest.splitlines():
        modes = _MODE.findall(line)
        if listed and not modes:
            break
        listed += modes
    return tuple(listed)


def _first_row(text: str) -> dict[str, object]:
    """The one interface in ethtool's JSON. Raises UnhealthyError where there is none."""
    try:
        return json_in(text, list[dict[str, object]])[0]
    except (DecodingError, IndexError):
        raise UnhealthyError("ethtool printed JSON that c4bench cannot read; is its version supported?") from None


def _words(row: dict[str, object], key: str) -> tuple[str, ...]:
    value = row.get(key)
    return tuple(str(item) for item in value) if isinstance(value, list) else ()


def _fec_words(text: str) -> tuple[str, ...]:
    """Words for FEC as `--set-fec` takes them; what links support and use is printed as `None` for `off`."""
    return tuple({"none": "off"}.get(word, word) for word in text.lower().split())


class Fec(msgspec.Struct, frozen=True):
    """Forward error correction, by words of `--set-fec`: what is configured, () for unknown, and what the link uses."""

    configured: tuple[str, ...]
    active: str


def read_fec(netdev: str) -> Fec:
    """That of an interface here. Raises UnhealthyError as `ask` does."""
    return parse_fec(_ask_ethtool("--show-fec", netdev))


def parse_fec(text: str) -> Fec:
    """The facts in what `ethtool --show-fec` prints, with or without --json. Raises UnhealthyError for others."""
    if text.lstrip().startswith("["):
        row = _first_row(text)
        configured, active = (" ".join(_words(row, key)) for key in ("config", "active"))
    else:
        found = {key: re.search(rf"{key}:(.*)", text) for key in ("onfigured FEC encodings", "Active FEC encodings?")}
        configured, active = (match[1] if match else "" for match in found.values())
    if not configured.split():
        raise UnhealthyError("ethtool lists no FEC encodings; the driver, or its version, does not report them")
    known = () if "none" in configured.lower().split() else _fec_words(configured)
    return Fec(known, " ".join(_fec_words(active)))


# By lines of mlxlink's first two sections; newer versions end the title with "(Ext.)", and name lanes: `100G_4X`.
_STATE = re.compile(r"^State\s*:\s*(\S[^\n]*?)\s*$", re.MULTILINE)
_ENABLED = re.compile(r"^Enabled Link Speed\s*(?:\(Ext\.\))?\s*:\s*0x[0-9a-f]+\s*\(([^)]*)\)", re.MULTILINE)


def read_mlxlink(interface: Interface) -> str:
    """What `mlxlink` prints of a NIC's port. Raises UnhealthyError as `ask` does."""
    return ask("mlxlink", "-d", pci_address(interface))


def port_state(text: str) -> str:
    """The state of the port in what mlxlink prints, such as `Active`. Raises UnhealthyError where it has none."""
    match = _STATE.search(_uncoloured(text))
    if match is None:
        raise UnhealthyError("mlxlink prints no state of the port; is its version supported?")
    return match[1]


def enabled_speeds(text: str) -> list[str]:
    """The speeds that the port may negotiate, by mlxlink's names. Raises UnhealthyError when it does not list them."""
    match = _ENABLED.search(_uncoloured(text))
    if match is None:
        raise UnhealthyError("mlxlink lists no enabled speeds; check that the port is up and the version supported")
    return [word.strip() for word in match[1].split(",")]


def _uncoloured(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


ACCELERATION = "ROCE_ACCL"
FLOOR_OFF = "min_ack_timeout_limit_disabled"
_FIELD = re.compile(r"^\s*([a-z][a-z0-9_]{0,63})\s*\|\s*0x([0-9a-fA-F]{1,8})\s*$", re.MULTILINE)


def read_acceleration(interface: Interface) -> dict[str, int]:
    """The register ROCE_ACCL of a NIC, by field. Raises UnhealthyError as `ask` does, and as `parse_register`."""
    return parse_register(ask("mlxreg", "-d", pci_address(interface), "--yes", "--reg_name", ACCELERATION, "--get"))


def parse_register(text: str) -> dict[str, int]:
    """The fields of a register in what `mlxreg --get` prints. Raises UnhealthyError where there are none."""
    fields = {name: int(value, 16) for name, value in _FIELD.findall(text)}
    if not fields:
        raise UnhealthyError("mlxreg prints no fields of the register; is its version supported?")
    return fields


def traffic_class_file(interface: Interface) -> Path:
    """Where NVIDIA's driver package sets the traffic class of all packets of a device."""
    return SYSFS / "infiniband" / interface.device / "tc/1/traffic_class"


def forced_class(interface: Interface) -> int:
    """The traffic class that a device gives all its packets, -1 for none.

    Raises UnhealthyError where the driver cannot.
    """
    path = traffic_class_file(interface)
    try:
        text = path.read_text()
    except OSError:
        raise UnhealthyError(f"there is no {path}: only the driver of NVIDIA's package (DOCA-OFED) has it") from None
    match = re.search(r"Global tclass=(\d{1,3})\b", text)
    return int(match[1]) if match else -1


# The ends of congestion control: the one that answers marks (notification), and the one that slows down (reaction).
ENDS = {"notification": ("roce_np",), "reaction": ("roce_rp",), "both": ("roce_np", "roce_rp")}


def congestion_control(interface: Interface, ends: Sequence[str]) -> list[Path]:
    """The files of the priorities at which DCQCN is on at those `ends`.

    Raises UnhealthyError where the driver has no such files.
    """
    folders = [SYSFS / "net" / interface.netdev / "ecn" / end / "enable" for end in ends]
    files = [path for folder in folders for path in sorted(folder.glob("[0-7]"))]
    if not files:
        raise UnhealthyError(
            f"there is no {folders[0]}: only the driver of NVIDIA's package (DOCA-OFED) has it; with the kernel's own "
            "it is ROCE_CC_PRIO_MASK_P1 of mlxconfig, which needs a reset of the NIC"
        )
    return [path for path in files if _read(path) == "1"]


def settings(interface: Interface) -> dict[str, str]:
    """What hardware drivers change and can be read at once, as text by section; nothing of a NIC of another driver.

    The speed of a link and its forward error correction are not in it: they settle when the link has trained.
    """
    driver = SYSFS / "infiniband" / interface.device / "device/driver"
    if not interface.device or driver.resolve().name != "mlx5_core":
        return {}
    folder = SYSFS / "net" / interface.netdev / "ecn"
    files = sorted(path for end in ENDS["both"] for path in (folder / end / "enable").glob("[0-7]"))
    return {
        "qos": _qos_text(interface.netdev),
        "DCQCN": " ".join(f"{path.parts[-3]}/{path.name}={_read(path)}" for path in files),
        "traffic class": _read(traffic_class_file(interface)),
    }


def _qos_text(netdev: str) -> str:
    """The settings of queues as text, "" where no tool reads them: on InfiniBand, or without mlnx_qos."""
    try:
        return json.dumps(msgspec.to_builtins(read_qos(netdev)), sort_keys=True) if shutil.which("mlnx_qos") else ""
    except UnhealthyError:
        return ""
