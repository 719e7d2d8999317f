"""What CONFIG_DB means for the lab's ports: the state of each port, and the commands from one state to the next.

Pure functions. A port of the lab has one queue: it has the rate of the slower of port and queue, and marks as the
queue's WRED profile says; the queue is that of the DSCP which the lab's NICs send. Where that DSCP leads to a queue
without a profile nothing is marked, as in hardware.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import msgspec
from msgspec.structs import replace

from c4bench.lab.guest import fabric, flow_control
from c4bench.lab.topology import EcnMarking
from c4bench.lab.twin.factory import MTU_BYTES, Config
from c4bench.lab.twin.ports import SwitchPort

Stage = Literal["ingress", "egress"]
Row = Mapping[str, str]
# More rules of a table, and tables of a stage, are refused, as by an ASIC that is full.
RULES_AT_MOST, TABLES_AT_MOST = 128, 4
FIRST_PREFERENCE = 10  # of the filters: those of a port's rules follow each other
_TABLE_TYPES = frozenset({"L3"})


class Rule(msgspec.Struct, frozen=True):
    """A rule of an ACL on a port, as `tc` takes it."""

    table: str
    name: str
    stage: Stage
    matches: tuple[str, ...]
    drops: bool


class PortState(msgspec.Struct, frozen=True):
    """A port as CONFIG_DB wants it."""

    up: bool
    mtu_bytes: int
    shaping: tuple[str, ...]
    rules: tuple[Rule, ...]
    pauses: tuple[str, ...] = ()


class UnsupportedError(Exception):
    """A setting that the switch cannot have."""


def port_state(config: Config, port: SwitchPort, dscp: int) -> PortState:
    """What CONFIG_DB wants of a port."""
    row = config.get("PORT", {}).get(port.name, {})
    rate_bps = min(1e6 * int(row.get("speed", port.speed_mbps)), _scheduled_bps(config, port.name, dscp))
    cable = replace(port.cable, rate_bps=rate_bps)
    return PortState(
        up=row.get("admin_status") == "up",
        mtu_bytes=int(row.get("mtu", MTU_BYTES)),
        shaping=tuple(fabric.shaper(port.name, cable, _marking(config, port.name, dscp))),
        rules=tuple(_rules(config, port.name)),
        pauses=tuple(_pauses(config, port, rate_bps)) if port.cable.pfc else (),
    )


def queue_of(config: Config, port: str, dscp: int) -> int:
    """The queue of packets with a DSCP: the port's maps lead to it; without a map it is queue 0."""
    own = config.get("PORT_QOS_MAP", {}).get(port, {})
    classes = config.get("DSCP_TO_TC_MAP", {}).get(own.get("dscp_to_tc_map", ""), {})
    queues = config.get("TC_TO_QUEUE_MAP", {}).get(own.get("tc_to_queue_map", ""), {})
    traffic_class = classes.get(str(dscp), "0")
    return int(queues.get(traffic_class, traffic_class))


def of_queue(config: Config, port: str, queue: int) -> Row:
    """The row of QUEUE for a port's queue."""
    return of_numbers(config.get("QUEUE", {}), port, queue)


def of_numbers(rows: Mapping[str, Row], port: str, number: int) -> Row:
    """The row for a port and one of its queues or groups; a key may name several (`Ethernet0,Ethernet4|3-4`)."""
    for key, row in rows.items():
        ports, _, numbers = key.partition("|")
        first, _, last = numbers.partition("-")
        if port in ports.split(",") and int(first) <= number <= int(last or first):
            return row
    return {}


_DSCPS = range(64)


def _pauses(config: Config, port: SwitchPort, rate_bps: float) -> Iterator[str]:
    """The lines that set flow control of a port (`flow_control`): priorities, thresholds, classes and the watchdog."""
    own = config.get("PORT_QOS_MAP", {}).get(port.name, {})
    lossless = [int(number) for number in own.get("pfc_enable", "").split(",") if number]
    profile = _buffer_profile(config, port.name, lossless)
    watchdog = config.get("PFC_WD", {}).get(port.name, {})
    classes = config.get("DSCP_TO_TC_MAP", {}).get(own.get("dscp_to_tc_map", ""), {})
    values = {
        "rate": round(rate_bps),
        "lossless": flow_control.mask(lossless),
        **{field: int(profile[field]) for field in ("xoff", "xon") if field in profile},
        "detect_us": 1000 * int(watchdog.get("detection_time", "0")),
        "restore_us": 1000 * int(watchdog.get("restoration_time", watchdog.get("detection_time", "0"))),
        "forward": int(watchdog.get("action") == "forward"),
        **{f"dscp {dscp}": int(classes.get(str(dscp), "0")) for dscp in _DSCPS},
    }
    yield from (f"{port.name} {name} {value}" for name, value in values.items())


def _buffer_profile(config: Config, port: str, lossless: Sequence[int]) -> Row:
    """The buffer profile of the first lossless priority group."""
    for number in lossless[:1]:
        name = of_numbers(config.get("BUFFER_PG", {}), port, number).get("profile", "")
        return config.get("BUFFER_PROFILE", {}).get(name, {})
    return {}


def _scheduled_bps(config: Config, port: str, dscp: int) -> float:
    """The peak rate that the schedulers of port and queue allow; `pir` is in bytes/s unless `meter_type` is packets."""
    names = (
        config.get("PORT_QOS_MAP", {}).get(port, {}).get("scheduler", ""),
        of_queue(config, port, queue_of(config, port, dscp)).get("scheduler", ""),
    )
    rows = [config.get("SCHEDULER", {}).get(name, {}) for name in names]
    rates = [8.0 * int(row["pir"]) for row in rows if row.get("pir", "0") != "0" and row.get("meter_type") != "packets"]
    return min(rates, default=float("inf"))


def _marking(config: Config, port: str, dscp: int) -> EcnMarking | None:
    name = of_queue(config, port, queue_of(config, port, dscp)).get("wred_profile", "")
    profile = config.get("WRED_PROFILE", {}).get(name, {})
    if profile.get("ecn") not in {"ecn_all", "ecn_green"} or profile.get("wred_green_enable") != "true":
        return None
    lowest, highest = (int(profile.get(f"green_{which}_threshold", "0")) for which in ("min", "max"))
    share = float(profile.get("green_drop_probability", "100")) / 100
    # RED needs some room between its thresholds, and a lowest one of at least a packet.
    return EcnMarking(max(lowest, fabric.MTU_BYTES), max(highest, lowest + 2 * fabric.MTU_BYTES), max(share, 1e-6))


def bound_ports(table: Row) -> list[str]:
    """The ports that an ACL table is bound to."""
    return [port for port in table.get("ports@", table.get("ports", "")).split(",") if port]


def status_of_rules(config: Config) -> dict[str, bool]:
    """Whether each rule (`TABLE|RULE`) is active: its table is there and has room, and its matches are known."""
    used: dict[str, int] = {}
    status = {}
    fitting = _fitting_tables(config)
    for key, row in _by_priority(config):
        table = key.partition("|")[0]
        try:
            matches(row)
            active = table in fitting and used.get(table, 0) < RULES_AT_MOST
        except (UnsupportedError, ValueError):
            active = False
        used[table] = used.get(table, 0) + active
        status[key] = active
    return status


def _fitting_tables(config: Config) -> set[str]:
    """The tables of a known type for which their stage has room."""
    known = _TABLE_TYPES | {name.upper() for name in config.get("ACL_TABLE_TYPE", {})}
    fitting: dict[Stage, list[str]] = {"ingress": [], "egress": []}
    for name, own in config.get("ACL_TABLE", {}).items():
        if own.get("type", "").upper() in known and len(fitting[stage_of(own)]) < TABLES_AT_MOST:
            fitting[stage_of(own)].append(name)
    return {name for names in fitting.values() for name in names}


def stage_of(table: Row) -> Stage:
    """The stage of an ACL table."""
    return "egress" if table.get("stage", "").lower() == "egress" else "ingress"


def _by_priority(config: Config) -> list[tuple[str, dict[str, str]]]:
    rows = config.get("ACL_RULE", {}).items()
    return sorted(rows, key=lambda one: (-int(one[1].get("PRIORITY", "0")), one[0]))


def _rules(config: Config, port: str) -> Iterator[Rule]:
    active = status_of_rules(config)
    for key, row in _by_priority(config):
        table, _, name = key.partition("|")
        own = config.get("ACL_TABLE", {}).get(table, {})
        if active[key] and port in bound_ports(own):
            drops = row.get("PACKET_ACTION", "FORWARD").upper() == "DROP"
            yield Rule(table, name, stage_of(own), matches(row), drops)


# Offsets in an IPv4 packet without options, bytes: the base transport header follows IP and UDP (IBTA 9.2), and an
# acknowledgement's syndrome follows that.
_OFFSETS = {"BTH_OPCODE": 28, "AETH_SYNDROME": 40}
_OF_IPV4 = {"ETHER_TYPE": ("0X0800", "0X800", "2048"), "IP_TYPE": ("ANY", "IP", "IPV4", "IPV4ANY")}
_NO_MATCHES = frozenset({"PRIORITY", "PACKET_ACTION"})


def matches(row: Row) -> tuple[str, ...]:
    """What a rule matches, as words of the classifier u32. Raises UnsupportedError, ValueError."""
    found = tuple(_match(field, value) for field, value in sorted(row.items()) if field not in _NO_MATCHES)
    if row.get("PACKET_ACTION", "FORWARD").upper() not in {"DROP", "FORWARD", "ACCEPT"}:
        raise UnsupportedError(row["PACKET_ACTION"])
    return tuple(one for one in found if one) or ("match u8 0 0 at 0",)


def _match(field: str, value: str) -> str:
    """One match; "" for what every packet of IPv4 has. Raises UnsupportedError, ValueError."""
    number, _, mask = value.partition("/")
    match field:
        case "SRC_IP" | "DST_IP":
            words = f"match ip {field[:3].lower()} {value}"
        case "IP_PROTOCOL":
            words = f"match ip protocol {int(value, 0)} 0xff"
        case "L4_SRC_PORT" | "L4_DST_PORT":
            words = f"match ip {'sport' if 'SRC' in field else 'dport'} {int(value, 0)} 0xffff"
        case "DSCP":
            words = f"match ip dsfield {int(number, 0) << 2:#x} {int(mask or '0x3f', 0) << 2:#x}"
        case "BTH_OPCODE" | "AETH_SYNDROME":
            words = f"match u8 {int(number, 0):#x} {int(mask or '0xff', 0):#x} at {_OFFSETS[field]}"
        case _ if value.upper() in _OF_IPV4.get(field, ()):
            words = ""
        case _:
            raise UnsupportedError(field)
    return words


def changes(port: SwitchPort, before: PortState | None, after: PortState) -> dict[str, list[str]]:
    """By tool, the commands from one state of a port to another; None is a port of which nothing is known."""
    ip: list[str] = []
    tc: list[str] = []
    if before is None or before.mtu_bytes != after.mtu_bytes:
        ip.append(f"link set {port.name} mtu {after.mtu_bytes}")
    if before is None or before.up != after.up:
        ip += _switched(port, up=after.up)
    if before is None or before.shaping != after.shaping:
        # Deleting the queue drops what is in it, but is the only way to be rid of one below another.
        tc += [f"qdisc del dev {port.name} root"] if before and len(before.shaping) > len(after.shaping) else []
        tc += after.shaping
    if (before.rules if before else ()) != after.rules:
        tc += [f"qdisc del dev {port.name} clsact"] if before and before.rules else []
        tc += _filters(port.name, after.rules)
    return {tool: lines for tool, lines in (("ip", ip), ("tc", tc)) if lines}


def _switched(port: SwitchPort, *, up: bool) -> list[str]:
    if not up:
        return [f"link set {port.name} down"]
    far = port.neighbour
    neighbour = f"neighbour replace {far.address} lladdr {far.mac} dev {port.name} nud permanent"
    return [f"link set {port.name} up", neighbour]


def _filters(port: str, rules: tuple[Rule, ...]) -> list[str]:
    if not rules:
        return []
    lines = [f"qdisc add dev {port} clsact"]
    for preference, rule in enumerate(rules, FIRST_PREFERENCE):
        where = f"dev {port} {rule.stage} protocol ip pref {preference}"
        lines.append(f"filter add {where} u32 {' '.join(rule.matches)} action {'drop' if rule.drops else 'ok'}")
    return lines
