"""`show` and the programs behind it, with the columns of SONiC's Command-Reference.md."""

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from c4bench.lab.twin import config_db, factory
from c4bench.lab.twin.commands import Call, command
from c4bench.lab.twin.counters import PRIORITIES
from c4bench.lab.twin.forwarding import bound_ports
from c4bench.lab.twin.tables import natural, table

_MBPS_IN_G = 1000
_ABSENT = "N/A"
# What `sonic-clear` has taken as zero, by user, as under /tmp/cache of SONiC.
_CLEARED = "/tmp/cache-{}-{}.json"


def said(*argv: str) -> str:
    """What a program of the switch prints."""
    return subprocess.run(argv, capture_output=True, text=True, check=False).stdout


@command("show version")
def version(call: Call) -> None:
    """`show version`."""
    call.write(
        f"\nSONiC Software Version: SONiC.{factory.VERSION}\nSONiC OS Version: 12\nDistribution: Debian 12\n"
        f"Kernel: {said('uname', '-r').strip()}\nBuild commit: none\nBuild date: none\nBuilt by: c4bench\n\n"
        f"Platform: {factory.PLATFORM}\nHwSKU: {factory.SKU}\nASIC: vs\nASIC Count: 1\n"
        f"Serial Number: {call.layout.name}\nModel Number: N/A\nHardware Revision: N/A\n"
        f"Uptime: {said('uptime').strip()}\nDate: {said('date').strip()}\n\nDocker images:\n"
        "REPOSITORY    TAG    IMAGE ID    SIZE"
    )


@command("show uptime", "show clock")
def clock(call: Call) -> None:
    """`show uptime`, `show clock`."""
    call.write((said("uptime", "-p") if call.name.endswith("uptime") else said("date")).strip())


@command("show platform summary")
def platform(call: Call) -> None:
    """`show platform summary`."""
    call.write(f"Platform: {factory.PLATFORM}\nHwSKU: {factory.SKU}\nASIC: vs\nASIC Count: 1")


@command("show interfaces status", "show interface status")
def interfaces_status(call: Call) -> None:
    """`show interfaces status [NAMES]`."""
    rows = []
    for port in call.ports(call.parse("[NAMES]").get("NAMES", "")):
        own = call.config.row(f"PORT|{port.name}")
        oper = call.database("APPL_DB").row(f"PORT_TABLE:{port.name}").get("oper_status", "down")
        speed = _speed(own.get("speed", _ABSENT))
        known = (own.get(field, _ABSENT) for field in ("mtu", "fec", "alias"))
        admin = own.get("admin_status", "down")
        asymmetric = own.get("pfc_asym", _ABSENT)
        rows.append((port.name, own.get("lanes", _ABSENT), speed, *known, "routed", oper, admin, _ABSENT, asymmetric))
    headings = ("Interface", "Lanes", "Speed", "MTU", "FEC", "Alias", "Vlan", "Oper", "Admin", "Type", "Asym PFC")
    call.write(table(headings, rows))


def _speed(mbps: str) -> str:
    return f"{int(mbps) // _MBPS_IN_G}G" if mbps.isdecimal() and int(mbps) % _MBPS_IN_G == 0 else f"{mbps}M"


@command("show interfaces description", "show interfaces alias")
def interfaces_description(call: Call) -> None:
    """`show interfaces description [NAMES]`, `show interfaces alias [NAMES]`."""
    ports = call.ports(call.parse("[NAMES]").get("NAMES", ""))
    configured = {port.name: call.config.row(f"PORT|{port.name}") for port in ports}
    if call.name.endswith("alias"):
        call.write(
            table(("Name", "Alias"), [(name, own.get("alias", "")) for name, own in configured.items()], right=False)
        )
        return
    state = call.database("APPL_DB")
    rows = [
        (
            name,
            state.row(f"PORT_TABLE:{name}").get("oper_status", "down"),
            own.get("admin_status", "down"),
            own.get("alias", ""),
            own.get("description", _ABSENT),
        )
        for name, own in configured.items()
    ]
    call.write(table(("Interface", "Oper", "Admin", "Alias", "Description"), rows))


# Columns of counters, by the fields that add up to them; one without fields is a rate or the state.
_RX_OK = ("SAI_PORT_STAT_IF_IN_UCAST_PKTS", "SAI_PORT_STAT_IF_IN_NON_UCAST_PKTS")
_TX_OK = ("SAI_PORT_STAT_IF_OUT_UCAST_PKTS", "SAI_PORT_STAT_IF_OUT_NON_UCAST_PKTS")
_SUMS: Mapping[str, Sequence[str]] = {
    "RX_OK": _RX_OK,
    "RX_ERR": ("SAI_PORT_STAT_IF_IN_ERRORS",),
    "RX_DRP": ("SAI_PORT_STAT_IF_IN_DISCARDS",),
    "RX_OVR": ("SAI_PORT_STAT_ETHER_RX_OVERSIZE_PKTS",),
    "TX_OK": _TX_OK,
    "TX_ERR": ("SAI_PORT_STAT_IF_OUT_ERRORS",),
    "TX_DRP": ("SAI_PORT_STAT_IF_OUT_DISCARDS",),
    "TX_OVR": ("SAI_PORT_STAT_ETHER_TX_OVERSIZE_PKTS",),
}
_STANDARD = (
    *("IFACE", "STATE", "RX_OK", "RX_BPS", "RX_UTIL", "RX_ERR", "RX_DRP", "RX_OVR"),
    *("TX_OK", "TX_BPS", "TX_UTIL", "TX_ERR", "TX_DRP", "TX_OVR"),
)
_ERRORS = ("IFACE", "STATE", "RX_ERR", "RX_DRP", "RX_OVR", "TX_ERR", "TX_DRP", "TX_OVR")
_RATES = ("IFACE", "STATE", "RX_OK", "RX_BPS", "RX_PPS", "RX_UTIL", "TX_OK", "TX_BPS", "TX_PPS", "TX_UTIL")
_OPTIONS = {"-i": "NAMES", "--interface": "NAMES", "-e": "errors!", "-R": "rates!", "-j": "json!", "-c": "clear!"}


@command("show interfaces counters", "show interface counters", "portstat")
def interfaces_counters(call: Call) -> None:
    """`show interfaces counters [errors|rates] [-i NAMES]`, `portstat [-e|-R] [-j] [-i NAMES]`."""
    asked = call.parse("[kind]", options=_OPTIONS)
    columns = {"errors": _ERRORS, "rates": _RATES}.get(asked.get("kind", ""), _STANDARD)
    columns = _ERRORS if "errors" in asked else _RATES if "rates" in asked else columns
    if "clear" in asked:
        clear(call, "counters")
        return
    names = call.database("COUNTERS_DB").row("COUNTERS_PORT_NAME_MAP")
    cleared = _zero(call, "counters")
    rows = []
    for port in call.ports(asked.get("NAMES", "")):
        oid = names.get(port.name, "")
        counts = call.database("COUNTERS_DB").row(f"COUNTERS:{oid}")
        rates = call.database("COUNTERS_DB").row(f"RATES:{oid}")
        cells = {
            "IFACE": port.name,
            "STATE": _state(call, port.name),
            **{name: _sum(counts, cleared.get(oid, {}), fields) for name, fields in _SUMS.items()},
            **_printed_rates(rates, call.config.row(f"PORT|{port.name}").get("speed", "0")),
        }
        rows.append([cells[name] for name in columns])
    if "json" in asked:
        listed = {row[0]: dict(zip(columns[1:], row[1:], strict=True)) for row in rows}
        call.write(json.dumps(listed, indent=4, sort_keys=True))
    else:
        call.write(table(columns, rows))


def _state(call: Call, port: str) -> str:
    """U, D, or X for a port that is set down."""
    state = call.database("APPL_DB").row(f"PORT_TABLE:{port}")
    if call.config.row(f"PORT|{port}").get("admin_status") != "up":
        return "X"
    return "U" if state.get("oper_status") == "up" else "D"


def _sum(counts: Mapping[str, str], cleared: Mapping[str, str], fields: Sequence[str]) -> str:
    known = [field for field in fields if field in counts]
    return f"{sum(int(counts[field]) - int(cleared.get(field, 0)) for field in known):,}" if known else _ABSENT


_MEGA, _KILO = 1e6, 1e3


def _printed_rates(rates: Mapping[str, str], speed_mbps: str) -> dict[str, str]:
    cells = {}
    for way in ("RX", "TX"):
        rate = rates.get(f"{way}_BPS")
        cells[f"{way}_BPS"] = _bytes_per_s(float(rate)) if rate else _ABSENT
        cells[f"{way}_PPS"] = f"{float(rates[f'{way}_PPS']):.2f}/s" if f"{way}_PPS" in rates else _ABSENT
        share = 8 * float(rate) / (float(speed_mbps) * _MEGA) if rate and float(speed_mbps) else None
        cells[f"{way}_UTIL"] = _ABSENT if share is None else f"{share:.2%}"
    return cells


def _bytes_per_s(rate: float) -> str:
    """As SONiC scales it: from ten of a unit on."""
    if rate > 10 * _MEGA:
        return f"{rate / _MEGA:.2f} MB/s"
    return f"{rate / _KILO:.2f} KB/s" if rate > 10 * _KILO else f"{rate:.2f} B/s"


def clear(call: Call, kind: str) -> None:
    """Take the counts of now as zero for this user."""
    rows = call.database("COUNTERS_DB").rows("COUNTERS:oid:*")
    zero = {key.removeprefix("COUNTERS:"): row for key, row in rows.items()}
    Path(_CLEARED.format(kind, call.user)).write_text(json.dumps(zero))
    call.write("Cleared counters")


def _zero(call: Call, kind: str) -> dict[str, dict[str, str]]:
    path = Path(_CLEARED.format(kind, call.user))
    return msgspec.json.decode(path.read_bytes(), type=dict[str, dict[str, str]]) if path.exists() else {}


@command("sonic-clear counters", "sonic-clear pfccounters", "sonic-clear queuecounters")
def clear_counters(call: Call) -> None:
    """`sonic-clear counters`, `sonic-clear pfccounters`, `sonic-clear queuecounters`."""
    clear(call, call.name.split()[-1])


@command("show pfc counters", "pfcstat")
def pfc_counters(call: Call) -> None:
    """`show pfc counters`."""
    names = call.database("COUNTERS_DB").row("COUNTERS_PORT_NAME_MAP")
    cleared = _zero(call, "pfccounters")
    printed = []
    for way in ("Rx", "Tx"):
        rows = []
        for port in call.layout.ports:
            oid = names.get(port.name, "")
            counts = call.database("COUNTERS_DB").row(f"COUNTERS:{oid}")
            fields = [f"SAI_PORT_STAT_PFC_{priority}_{way.upper()}_PKTS" for priority in PRIORITIES]
            rows.append((port.name, *(_sum(counts, cleared.get(oid, {}), (field,)) for field in fields)))
        printed.append(table((f"Port {way}", *(f"PFC{priority}" for priority in PRIORITIES)), rows))
    call.write("\n\n".join(printed))


@command("show pfc priority", "show pfc asymmetric", "pfc show priority", "pfc show asymmetric")
def pfc_priority(call: Call) -> None:
    """`show pfc priority [NAME]`, `show pfc asymmetric [NAME]`."""
    asymmetric = call.name.endswith("asymmetric")
    source, field = ("PORT", "pfc_asym") if asymmetric else ("PORT_QOS_MAP", "pfc_enable")
    rows = []
    for port in call.ports(call.parse("[NAME]").get("NAME", "")):
        own = call.config.row(f"{source}|{port.name}")
        if field in own or not asymmetric:
            rows.append((port.name, own.get(field) or _ABSENT))
    heading = "Asymmetric" if asymmetric else "Lossless priorities"
    call.write("\n" + table(("Interface", heading), rows, right=False) + "\n")


@command("show queue counters", "queuestat")
def queue_counters(call: Call) -> None:
    """`show queue counters [NAME]`."""
    headings = ("Port", "TxQ", "Counter/pkts", "Counter/bytes", "Drop/pkts", "Drop/bytes")
    fields = ("PACKETS", "BYTES", "DROPPED_PACKETS", "DROPPED_BYTES")
    names = call.database("COUNTERS_DB").row("COUNTERS_QUEUE_NAME_MAP")
    cleared = _zero(call, "queuecounters")
    asked = call.parse("[NAME]", options={"-p": "NAME"})
    for port in call.ports(asked.get("NAME", "")):
        rows = []
        for priority in PRIORITIES:
            oid = names.get(f"{port.name}:{priority}", "")
            counts = call.database("COUNTERS_DB").row(f"COUNTERS:{oid}")
            cells = (_sum(counts, cleared.get(oid, {}), (f"SAI_QUEUE_STAT_{field}",)) for field in fields)
            rows.append((port.name, f"UC{priority}", *cells))
        call.write(table(headings, rows) + "\n")


@command("show priority-group drop counters")
def group_drops(call: Call) -> None:
    """`show priority-group drop counters`."""
    names = call.database("COUNTERS_DB").row("COUNTERS_PG_NAME_MAP")
    field = "SAI_INGRESS_PRIORITY_GROUP_STAT_DROPPED_PACKETS"
    rows = []
    for port in call.layout.ports:
        oids = [names.get(f"{port.name}:{priority}", "") for priority in PRIORITIES]
        rows.append(
            (port.name, *(call.database("COUNTERS_DB").row(f"COUNTERS:{oid}").get(field, _ABSENT) for oid in oids))
        )
    call.write("Ingress PG dropped packets:\n" + table(("Port", *(f"PG{priority}" for priority in PRIORITIES)), rows))


@command("show ecn")
def ecn(call: Call) -> None:
    """`show ecn`."""
    for name, profile in call.config.table("WRED_PROFILE").items():
        width, other = max(map(len, profile)), max(map(len, profile.values()))
        rule = f"{'-' * width}  {'-' * other}"
        rows = "\n".join(f"{field.ljust(width)}  {value}" for field, value in profile.items())
        call.write(f"Profile: {name}\n{rule}\n{rows}\n{rule}\n")


@command("show acl table", "acl-loader show table")
def acl_table(call: Call) -> None:
    """`show acl table [NAME]`."""
    wanted = call.parse("[NAME]").get("NAME", "")
    rows = []
    for name, own in call.config.table("ACL_TABLE").items():
        if wanted in ("", name):
            bound, described = "\n".join(bound_ports(own)), own.get("policy_desc", "")
            rows.append((name, own.get("type", ""), bound, described, own.get("stage", "ingress").lower(), "Active"))
    call.write(table(("Name", "Type", "Binding", "Description", "Stage", "Status"), rows, right=False))


@command("show acl rule", "acl-loader show rule")
def acl_rule(call: Call) -> None:
    """`show acl rule [TABLE] [RULE]`."""
    asked = call.parse("[TABLE]", "[RULE]")
    rows = []
    for key, own in _rules(call):
        name, _, rule = key.partition("|")
        if asked.get("TABLE", name) == name and asked.get("RULE", rule) == rule:
            fields = sorted(field for field in own if field not in {"PRIORITY", "PACKET_ACTION"})
            matched = "\n".join(f"{field}: {own[field]}" for field in fields)
            status = call.database("STATE_DB").row(f"ACL_RULE_TABLE|{key}").get("status", _ABSENT)
            rows.append((name, rule, own.get("PRIORITY", ""), own.get("PACKET_ACTION", ""), matched, status))
    call.write(table(("Table", "Rule", "Priority", "Action", "Match", "Status"), rows, right=False))


def _rules(call: Call) -> list[tuple[str, dict[str, str]]]:
    """The rules, the first to match first."""
    return sorted(call.config.table("ACL_RULE").items(), key=lambda one: (-int(one[1].get("PRIORITY", "0")), one[0]))


@command("aclshow", "show acl counters")
def acl_counters(call: Call) -> None:
    """`aclshow [-a] [-r RULES] [-t TABLES]`."""
    asked = call.parse(options={"-a": "all!", "--all": "all!", "-r": "rules", "-t": "tables"})
    rows = []
    for key, own in _rules(call):
        name, _, rule = key.partition("|")
        counts = call.database("COUNTERS_DB").row(f"COUNTERS:{name}:{rule}")
        wanted = rule in asked.get("rules", rule).split(",") and name in asked.get("tables", name).split(",")
        if wanted and ("all" in asked or counts.get("Packets", "0") != "0"):
            cells = (counts.get("Packets", _ABSENT), counts.get("Bytes", _ABSENT))
            rows.append((rule, name, own.get("PRIORITY", ""), *cells))
    call.write(table(("RULE NAME", "TABLE NAME", "PRIO", "PACKETS COUNT", "BYTES COUNT"), rows, right=False))


_WATCHDOG_COLUMNS = (
    ("STORM DETECTED/RESTORED", "DEADLOCK_DETECTED", "DEADLOCK_RESTORED"),
    ("TX OK/DROP", "TX_PACKETS", "TX_DROPPED_PACKETS"),
    ("RX OK/DROP", "RX_PACKETS", "RX_DROPPED_PACKETS"),
    ("TX LAST OK/DROP", "TX_PACKETS_LAST", "TX_DROPPED_PACKETS_LAST"),
    ("RX LAST OK/DROP", "RX_PACKETS_LAST", "RX_DROPPED_PACKETS_LAST"),
)


@command("show pfcwd stats", "pfcwd show stats")
def watchdog_stats(call: Call) -> None:
    """`show pfcwd stats`: the queues that a storm has stopped."""
    names = call.database("COUNTERS_DB").row("COUNTERS_QUEUE_NAME_MAP")
    rows = []
    for queue, oid in sorted(names.items(), key=lambda one: natural(one[0])):
        own = call.database("COUNTERS_DB").row(f"COUNTERS:{oid}")
        cells = [
            "/".join(own.get(f"PFC_WD_QUEUE_STATS_{field}", "0") for field in fields)
            for _, *fields in _WATCHDOG_COLUMNS
        ]
        if any(cell != "0/0" for cell in cells):
            rows.append((queue, own.get("PFC_WD_STATUS", _ABSENT), *cells))
    call.write(table(("QUEUE", "STATUS", *(heading for heading, *_ in _WATCHDOG_COLUMNS)), rows))


@command("show pfcwd config", "pfcwd show config")
def watchdog_config(call: Call) -> None:
    """`show pfcwd config`."""
    known = call.config.table("PFC_WD")
    if interval := known.get("GLOBAL", {}).get("POLL_INTERVAL"):
        call.write(f"Changed polling interval to {interval}ms")
    fields = {
        "action": "drop",
        "detection_time": _ABSENT,
        "restoration_time": "infinite",
        "pfc_stat_history": "disable",
    }
    rows = [
        (port.name, *(known[port.name].get(field, default) for field, default in fields.items()))
        for port in call.layout.ports
        if port.name in known
    ]
    call.write(table(("PORT", "ACTION", "DETECTION TIME", "RESTORATION TIME", "HISTORY"), rows))


class _LldpValue(msgspec.Struct, frozen=True):
    value: str = ""
    type: str = ""
    enabled: bool = False


class _LldpChassis(msgspec.Struct, frozen=True):
    name: tuple[_LldpValue, ...] = ()
    id: tuple[_LldpValue, ...] = ()
    capability: tuple[_LldpValue, ...] = ()


class _LldpPort(msgspec.Struct, frozen=True):
    id: tuple[_LldpValue, ...] = ()
    descr: tuple[_LldpValue, ...] = ()


class _LldpInterface(msgspec.Struct, frozen=True):
    name: str = ""
    chassis: tuple[_LldpChassis, ...] = ()
    port: tuple[_LldpPort, ...] = ()


class _LldpList(msgspec.Struct, frozen=True):
    interface: tuple[_LldpInterface, ...] = ()


class _Lldp(msgspec.Struct, frozen=True):
    lldp: tuple[_LldpList, ...] = ()


_CAPABILITIES = {"Bridge": "B", "Router": "R"}


def _first(values: Sequence[_LldpValue]) -> str:
    return values[0].value if values else ""


@command("show lldp table")
def lldp_table(call: Call) -> None:
    """`show lldp table`, of what lldpd knows."""
    known = msgspec.json.decode(said("/usr/sbin/lldpcli", "-f", "json0", "show", "neighbors"), type=_Lldp)
    rows = []
    for one in known.lldp[0].interface if known.lldp else ():
        chassis, port = one.chassis[0], one.port[0]
        able = "".join(_CAPABILITIES.get(each.type, "O") for each in chassis.capability if each.enabled)
        system = _first(chassis.name) or _first(chassis.id)
        rows.append((one.name, system, _first(port.id), able, _first(port.descr)))
    rows.sort(key=lambda row: natural(row[0]))
    headings = ("LocalPort", "RemoteDevice", "RemotePortID", "Capability", "RemotePortDescr")
    call.write("Capability codes: (R) Router, (B) Bridge, (O) Other\n" + table(headings, rows, right=False))
    call.write(f"{'-' * 50}\nTotal entries displayed:  {len(rows)}")


@command("show lldp neighbors")
def lldp_neighbours(call: Call) -> None:
    """`show lldp neighbors [NAME]`."""
    name = call.parse("[NAME]").get("NAME", "")
    call.write(said("/usr/sbin/lldpcli", "show", "neighbors", *(("ports", name) if name else ())).rstrip())


_ROUTE_CODES = """\
Codes: K - kernel route, C - connected, S - static, R - RIP,
       O - OSPF, I - IS-IS, B - BGP, E - EIGRP, N - NHRP,
       > - selected route, * - FIB route, q - queued, r - rejected, b - backup
"""


class _Hop(msgspec.Struct, frozen=True):
    gateway: str = ""
    dev: str = ""
    flags: tuple[str, ...] = ()


class _Route(msgspec.Struct, frozen=True):
    dst: str = ""
    gateway: str = ""
    dev: str = ""
    protocol: str = ""
    scope: str = ""
    type: str = ""
    nexthops: tuple[_Hop, ...] = ()
    flags: tuple[str, ...] = ()


_CODES = {"kernel": "C", "bgp": "B", "static": "S"}


@command("show ip route")
def routes(call: Call) -> None:
    """`show ip route`, of the kernel's main table."""
    printed = _ROUTE_CODES
    for route in msgspec.json.decode(said("ip", "-4", "-json", "route"), type=tuple[_Route, ...]):
        code = _CODES.get(route.protocol, "K")
        if route.type == "unreachable":
            printed += f"\n{code}>* {route.dst} [0/0] unreachable (ICMP unreachable)"
        elif route.scope == "link":
            printed += f"\n{code}>* {route.dst} is directly connected, {route.dev}"
        else:
            hops = route.nexthops or (_Hop(route.gateway, route.dev, route.flags),)
            lines = [f"via {hop.gateway}, {hop.dev}" for hop in hops if "dead" not in hop.flags]
            start = f"{code}>* {route.dst} [0/0] "
            printed += "\n" + f"\n  *{' ' * (len(start) - 3)}".join(
                [start + line if not n else line for n, line in enumerate(lines)]
            )
    call.write(printed)


class _Address(msgspec.Struct, frozen=True):
    local: str = ""
    prefixlen: int = 0
    family: str = ""


class _Interface(msgspec.Struct, frozen=True):
    ifname: str = ""
    operstate: str = ""
    flags: tuple[str, ...] = ()
    addr_info: tuple[_Address, ...] = ()


@command("show ip interfaces")
def ip_interfaces(call: Call) -> None:
    """`show ip interfaces`."""
    headings = ("Interface", "Master", "IPv4 address/mask", "Admin/Oper", "BGP Neighbor", "Neighbor IP")
    rows = []
    for one in msgspec.json.decode(said("ip", "-4", "-json", "address"), type=tuple[_Interface, ...]):
        states = ("up" if "UP" in one.flags else "down", "up" if one.operstate in {"UP", "UNKNOWN"} else "down")
        for address in one.addr_info:
            own = f"{address.local}/{address.prefixlen}"
            rows.append((one.ifname, "", own, "/".join(states), _ABSENT, _ABSENT))
    rows.sort(key=lambda row: natural(row[0]))
    call.write(table(headings, rows, right=False))


@command("show runningconfiguration all", "sonic-cfggen -d --print-data")
def running_configuration(call: Call) -> None:
    """`show runningconfiguration all`, `sonic-cfggen -d --print-data`."""
    call.write(config_db.printed(call.config))


@command("show feature status")
def features(call: Call) -> None:
    """`show feature status`."""
    rows = [
        (name, own.get("state", ""), own.get("auto_restart", "")) for name, own in call.config.table("FEATURE").items()
    ]
    call.write(table(("Feature", "State", "AutoRestart"), rows, right=False))
