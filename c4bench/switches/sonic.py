"""SONiC: CONFIG_DB, `show` and `config`.

Written from its documentation (sonic-utilities' Command Reference, Configuration.md, the schema of its databases) and
recorded output. Ports are set by `config`; rows that it has no command for are written to CONFIG_DB, which is what
`config` does itself. Nothing is saved: after a restart of the switch its saved configuration holds.
"""

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from c4bench.decoding import DecodingError, json_in, whole_number
from c4bench.errors import UnhealthyError
from c4bench.model.fault import FaultRequest, Misconfiguration
from c4bench.switches.facts import AclTable, Ecn, Port, PortQos, SwitchFacts
from c4bench.switches.linux import carrier_changes
from c4bench.switches.system import Change, Printed, Read, System, cycle_of, port_of, up_port
from c4bench.switches.tables import numbers, rows_of

Row = Mapping[str, Any]
Table = Mapping[str, Row]

_TOOLS = ("sonic-db-cli", "redis-cli")
_READS = {
    "configuration": Read("sonic-cfggen -d --print-data"),
    "status": Read("show interfaces status"),
    "tools": Read(f"command -v {' '.join(_TOOLS)} || true"),
    "version": Read("cat /etc/sonic/sonic_version.yml", needed=False),
    "acl": Read("crm show resources acl group", needed=False),
    "neighbours": Read("ip neighbour show nud permanent"),
    "links": Read("ip -s -s -json link show", needed=False),
    "routes": Read("ip -4 route show", needed=False),
}
_VERSION = re.compile(r"build_version: *['\"]?([^'\"\n]+)")
_MBPS_BY_SUFFIX = {"M": 1, "G": 1000, "T": 1_000_000}
_SPEEDS_MBPS = (10_000, 25_000, 40_000, 50_000, 100_000, 200_000, 400_000, 800_000)
_PRIORITY_OF_RULE = "9999"
_UDP, _ROCE_PORT = "17", "4791"
# The base transport header's first byte (IBTA 9.2): acknowledgement of a reliable connection, all eight bits.
_ACKNOWLEDGE = "0x11/0xff"
_ACL_WAIT_S = 5
_STAGES = {"rx": ("ingress",), "tx": ("egress",), "both": ("ingress", "egress")}
_OWN = "C4BENCH"
_MTU_BYTES = 9100  # of a port that states none
_FIXES = {
    Misconfiguration.PFC_OFF: "sudo config interface pfc priority {port} {priority} on",
    Misconfiguration.ECN_OFF: "sudo ecnconfig -q {priority} on",
    Misconfiguration.ECN_THRESHOLDS: "sudo ecnconfig -p PROFILE -gmin {low} -gmax {high} -gdrop {percent}",
    Misconfiguration.DSCP_MAP: "sudo sonic-db-cli CONFIG_DB hset 'DSCP_TO_TC_MAP|MAP' {dscp} {priority}",
    Misconfiguration.MTU: "sudo config interface mtu {port} {mtu}",
    Misconfiguration.WATCHDOG_OFF: "sudo config pfcwd start --action drop {port} 400 --restoration-time 400",
}
# A locally administered MAC address that no port has.
_UNUSED_MAC = "02:c4:de:ad:00:00"


def parse(printed: Printed) -> SwitchFacts:
    """The facts. Raises UnhealthyError for output that is not SONiC's."""
    tables, states = _tables(printed["configuration"]), _states(printed["status"])
    if not states:
        raise UnhealthyError(
            "`show interfaces status` lists no port; with several ASICs in one switch c4bench cannot change it"
        )
    version = _VERSION.search(printed.get("version", ""))
    changes = carrier_changes(printed["links"]) if "links" in printed else {}
    ports = {name: _port(name, row, tables, changes.get(name)) for name, row in states.items()}
    return SwitchFacts(
        system="sonic",
        version=version[1] if version else "",
        ports=ports,
        qos={name: _qos(name, tables) for name in ports},
        acl_tables=tuple(_acl_tables(tables)),
        acl_free=_acl_free(printed["acl"]) if "acl" in printed else None,
        neighbours=_neighbours(tables),
        printed=printed,
    )


def configured(text: str) -> SwitchFacts:
    """What CONFIG_DB alone says, as sonic-cfggen prints it or a file has it: a port that is set up counts as up.

    Raises UnhealthyError.
    """
    tables = _tables(text)
    rows = tables.get("PORT", {})
    ports = {name: _configured_port(name, row) for name, row in rows.items()}
    return SwitchFacts("sonic", "", ports, {name: _qos(name, tables) for name in ports}, tuple(_acl_tables(tables)))


def _configured_port(name: str, row: Row) -> Port:
    up = row.get("admin_status") == "up"
    speed_mbps, mtu_bytes = (_number(name, what, row.get(what, of)) for what, of in (("speed", 0), ("mtu", _MTU_BYTES)))
    return Port(name, up, up, speed_mbps * 1e6, mtu_bytes)


def _number(port: str, what: str, value: object) -> int:
    """A number of CONFIG_DB. Raises UnhealthyError."""
    try:
        return whole_number(str(value))
    except DecodingError as error:
        raise UnhealthyError(f"{port}: {what}: {error}; correct it in CONFIG_DB") from None


def _tables(text: str) -> dict[str, dict[str, dict[str, Any]]]:
    """CONFIG_DB by table and row. Raises UnhealthyError."""
    try:
        found = json_in(text, dict[str, Any])
    except DecodingError as error:
        raise UnhealthyError(f"sonic-cfggen printed no CONFIG_DB ({error})") from None
    tables: dict[str, dict[str, dict[str, Any]]] = {}
    for table, rows in found.items():
        if isinstance(rows, dict):
            tables[table] = {key: row for key, row in rows.items() if isinstance(row, dict)}
    return tables


def _states(text: str) -> dict[str, dict[str, str]]:
    """The rows of `show interfaces status` by port. Raises UnhealthyError where a column is missing."""
    rows = {row["Interface"]: row for row in rows_of(text) if row.get("Interface")}
    for name, row in rows.items():
        if missing := sorted({"Oper", "Admin", "Speed", "MTU"} - row.keys()):
            raise UnhealthyError(f"`show interfaces status` has no column {missing[0]} of {name}; is this its version?")
    return rows


def _port(name: str, row: Mapping[str, str], tables: Mapping[str, Table], changes: int | None) -> Port:
    addresses = [key.partition("|")[2] for key in tables.get("INTERFACE", {}) if key.startswith(f"{name}|")]
    return Port(
        name,
        admin_up=row["Admin"] == "up",
        oper_up=row["Oper"] == "up",
        speed_bps=_speed_mbps(row["Speed"]) * 1e6,
        mtu_bytes=int(row["MTU"]) if row["MTU"].isdecimal() else 0,
        addresses=tuple(addresses),
        carrier_changes=changes,
    )


def _speed_mbps(text: str) -> int:
    number, suffix = text[:-1], text[-1:]
    return int(number) * _MBPS_BY_SUFFIX[suffix] if number.isdecimal() and suffix in _MBPS_BY_SUFFIX else 0


def _named(value: object) -> str:
    """The row that a field refers to, in either form: `AZURE`, or `[DSCP_TO_TC_MAP|AZURE]`."""
    return str(value).strip("[]").rpartition("|")[2]


def _map(table: Table, name: str) -> dict[int, int]:
    pairs = table.get(name, {}).items()
    return {int(key): int(value) for key, value in pairs if str(key).isdecimal() and str(value).isdecimal()}


def _qos(port: str, tables: Mapping[str, Table]) -> PortQos:
    own = tables.get("PORT_QOS_MAP", {}).get(port, {})
    maps = tables.get("DSCP_TO_TC_MAP", {})
    dscp_map = _named(own.get("dscp_to_tc_map", tables.get("PORT_QOS_MAP", {}).get("global", {}).get("dscp_to_tc_map")))
    shaper = tables.get("SCHEDULER", {}).get(_named(own.get("scheduler", "")), {})
    profiles = tables.get("WRED_PROFILE", {})
    ecn: dict[int, Ecn] = {}
    for queue, row in _queues(port, tables):
        profile = profiles.get(_named(row.get("wred_profile", "")), {})
        if str(profile.get("ecn", "ecn_none")) not in {"", "ecn_none"}:
            ecn[queue] = _ecn(profile)
    return PortQos(
        pfc=numbers(own.get("pfc_enable", "")),
        classes=_map(maps, dscp_map) if dscp_map in maps else None,
        queues=_map(tables.get("TC_TO_QUEUE_MAP", {}), _named(own.get("tc_to_queue_map", ""))),
        ecn=ecn,
        watchdog=port in tables.get("PFC_WD", {}),
        trust=_trust({**tables.get("PORT_QOS_MAP", {}).get("global", {}), **own}),
        shaped_bps=8.0 * next(iter(numbers(shaper.get("pir", "0"))), 0),
    )


def _trust(maps: Row) -> str:
    """The field that packets' classes come from."""
    return "dscp" if maps.get("dscp_to_tc_map") else "pcp" if maps.get("dot1p_to_tc_map") else "none"


def _ecn(profile: Row) -> Ecn:
    least, most = (next(iter(numbers(profile.get(f"green_{end}_threshold"))), 0) for end in ("min", "max"))
    return Ecn(least, most, float(next(iter(numbers(profile.get("green_drop_probability", "100"))), 100)))


def _queues(port: str, tables: Mapping[str, Table]) -> Iterator[tuple[int, Row]]:
    """The rows of the table QUEUE, `Ethernet0,Ethernet4|3-4`, of a port, by queue."""
    for key, row in tables.get("QUEUE", {}).items():
        ports, _, queues = key.rpartition("|")
        if port in ports.split(","):
            yield from ((queue, row) for queue in numbers(queues))


def _acl_tables(tables: Mapping[str, Table]) -> Iterator[AclTable]:
    rules = [key.partition("|")[0] for key in tables.get("ACL_RULE", {})]
    for name, row in tables.get("ACL_TABLE", {}).items():
        listed = row.get("ports", row.get("ports@", ()))
        ports = listed.split(",") if isinstance(listed, str) else map(str, listed)
        stage = str(row.get("stage", "ingress")).lower()
        yield AclTable(name, str(row.get("type", "")), stage, tuple(ports), rules.count(name))


def _acl_free(text: str) -> dict[str, int]:
    """How many access lists more can be bound to ports, by stage, as CRM counts them."""
    return {
        row["Stage"].lower(): int(row["Available Count"])
        for row in rows_of(text)
        if (row.get("Bind Point"), row.get("Resource Name")) == ("PORT", "acl_table")
        and row.get("Available Count", "").isdecimal()
    }


def _neighbours(tables: Mapping[str, Table]) -> dict[str, str]:
    """The BGP neighbour at the other end of each port: the row's key names it, its `local_addr` is the port's."""
    by_address = {
        address.partition("/")[0]: port
        for port, _, address in (key.partition("|") for key in tables.get("INTERFACE", {}))
        if address
    }
    return {
        by_address[local]: key.rpartition("|")[2]
        for key, row in tables.get("BGP_NEIGHBOR", {}).items()
        if (local := str(row.get("local_addr", ""))) in by_address
    }


def listing(facts: SwitchFacts, port: str | None) -> dict[str, str]:
    """CONFIG_DB, a section for each table and a line for each row; fixed neighbours; what of its ports is up."""
    tables = _tables(facts.printed["configuration"])
    found = {
        f"{facts.system} {table}": "".join(
            f"{key} {msgspec.json.encode(row, order='sorted').decode()}\n" for key, row in sorted(rows.items())
        )
        for table, rows in sorted(tables.items())
        if rows
    }
    up = "".join(f"{name}\n" for name, state in facts.ports.items() if state.oper_up and port in {name, None})
    fixed = "".join(f"{line.strip()}\n" for line in sorted(facts.printed.get("neighbours", "").splitlines()))
    return found | {f"{facts.system} ports up": up, f"{facts.system} fixed neighbours": fixed}


class _Database:
    """CONFIG_DB of a switch: its rows, and the commands that change them and put them back as they are."""

    def __init__(self, facts: SwitchFacts) -> None:
        names = {path.rpartition("/")[2] for path in facts.printed.get("tools", "").split()}
        self._tool = next((tool for tool in _TOOLS if tool in names), "")
        if not self._tool:
            raise UnhealthyError(f"this switch has neither {' nor '.join(_TOOLS)}; its version is not supported")
        self.tables = _tables(facts.printed["configuration"])

    def row(self, table: str, key: str) -> Row | None:
        """A row, None where there is none."""
        return self.tables.get(table, {}).get(key)

    def refer(self, table: str, key: str) -> str:
        """How a field refers to a row: by its name, and in versions before 202111 with its table, in brackets."""
        known = (row for rows in ("PORT_QOS_MAP", "QUEUE") for row in self.tables.get(rows, {}).values())
        old = any(str(value).startswith("[") for row in known for value in row.values())
        return f"[{table}|{key}]" if old else key

    def put(self, table: str, key: str, row: Row) -> str:
        """Set fields of a row."""
        words = [word for field, value in row.items() for word in self._field(field, value)]
        return self._command("HMSET", f"{table}|{key}", *words)

    def drop(self, table: str, key: str) -> str:
        """Delete a row."""
        return self._command("DEL", f"{table}|{key}")

    def drop_field(self, table: str, key: str, field: str) -> str:
        """Delete a field."""
        return self._command("HDEL", f"{table}|{key}", field)

    def put_back(self, table: str, key: str, *fields: str) -> str:
        """Give these fields of a row the value that they have; delete those that are not there, or the row."""
        row = self.row(table, key)
        if row is None:
            return self.drop(table, key)
        present = {field: row[field] for field in fields if field in row}
        lines = [self.put(table, key, present)] if present else []
        lines += [self.drop_field(table, key, field) for field in fields if field not in row]
        return " && ".join(lines)

    def state(self, key: str, field: str) -> str:
        """Print a field of STATE_DB."""
        database = ("STATE_DB",) if self._tool == "sonic-db-cli" else ("-n", "6")
        return shlex.join((self._tool, *database, "HGET", key, field))

    def _field(self, field: str, value: object) -> tuple[str, str]:
        """A list is a text with commas, under a name with an `@`."""
        return (f"{field}@", ",".join(map(str, value))) if isinstance(value, list | tuple) else (field, str(value))

    def _command(self, *words: str) -> str:
        database = ("CONFIG_DB",) if self._tool == "sonic-db-cli" else ("-n", "4")
        return shlex.join((self._tool, *database, *words))


def _config(*words: str) -> str:
    return shlex.join(("config", *words))


def _link(port: Port) -> str:
    return f"link of {port.name}"


def down(facts: SwitchFacts, request: FaultRequest) -> Change:
    """Shut the port down; the revert starts it."""
    port = up_port(facts, request)
    database = _Database(facts)
    return Change(
        (_link(port),),
        (_config("interface", "shutdown", port.name),),
        (_config("interface", "startup", port.name), database.put_back("PORT", port.name, "admin_status")),
    )


def flap(facts: SwitchFacts, request: FaultRequest) -> Change:
    """Shut the port down and start it, again and again."""
    return msgspec.structs.replace(down(facts, request), cycle=cycle_of(request))


def speed(facts: SwitchFacts, request: FaultRequest) -> Change:
    """Set the fastest speed at or below the requested share; both ends must support it."""
    port = up_port(facts, request)
    current_mbps = int(port.speed_bps / 1e6)
    slower = [mbps for mbps in _SPEEDS_MBPS if mbps <= current_mbps * request.number("fraction")]
    if not slower:
        raise UnhealthyError(
            f"{request.where} runs at {current_mbps} Mb/s and has no speed that much lower; ask for another fraction"
        )
    words = ("interface", "speed", port.name)
    revert = (
        _config(*words, f"{current_mbps}"),
        _Database(facts).put_back("PORT", port.name, "speed"),
    )
    return Change((_link(port),), (_config(*words, f"{slower[-1]}"),), revert)


def blackhole(facts: SwitchFacts, request: FaultRequest) -> Change:
    """Drop every RoCE packet that enters or leaves by the port, by an access list; the link stays up."""
    match = {"IP_PROTOCOL": _UDP, "L4_DST_PORT": _ROCE_PORT}
    return _dropped(facts, request, _STAGES[request.choice("direction")], match)


def acks_lost(facts: SwitchFacts, request: FaultRequest) -> Change:
    """Drop the acknowledgements that leave by the port, by an access list of a type of its own.

    Where the chip or the version cannot match the RoCE opcode, the rule does not become active and all is taken back.
    """
    database = _Database(facts)
    kind = f"{_OWN}_ACKS"
    row = {
        "matches": ["IP_PROTOCOL", "L4_DST_PORT", "BTH_OPCODE"],
        "actions": ["PACKET_ACTION"],
        "bind_points": ["PORT"],
    }
    match = {"IP_PROTOCOL": _UDP, "L4_DST_PORT": _ROCE_PORT, "BTH_OPCODE": _ACKNOWLEDGE}
    made = _dropped(facts, request, ("egress",), match, kind)
    return msgspec.structs.replace(
        made,
        apply=(database.put("ACL_TABLE_TYPE", kind, row), *made.apply),
        revert=(*made.revert, database.drop("ACL_TABLE_TYPE", kind)),
    )


def _dropped(
    facts: SwitchFacts, request: FaultRequest, stages: tuple[str, ...], match: Row, kind: str = "L3"
) -> Change:
    port, database = up_port(facts, request), _Database(facts)
    apply, revert = [], []
    for stage in stages:
        if facts.acl_free and facts.acl_free.get(stage) == 0:
            raise UnhealthyError(f"{request.host} has no room for another access list at {stage}; remove one")
        name = f"{_OWN}_{stage.upper()}"
        if database.row("ACL_TABLE", name) is not None:
            raise UnhealthyError(f"{request.host} has an access list {name} already; remove it, or end its fault first")
        table = {"policy_desc": "c4bench", "type": kind, "stage": stage, "ports": [port.name]}
        rule = {"PRIORITY": _PRIORITY_OF_RULE, "PACKET_ACTION": "DROP", **match}
        apply += [database.put("ACL_TABLE", name, table), database.put("ACL_RULE", f"{name}|DROP", rule)]
        revert += [database.drop("ACL_RULE", f"{name}|DROP"), database.drop("ACL_TABLE", name)]
    apply += [_until_active(database, f"{_OWN}_{stage.upper()}") for stage in stages]
    claims = tuple(f"access list at {stage}" for stage in stages)
    return Change(claims, tuple(apply), tuple(revert))


def _until_active(database: _Database, table: str) -> str:
    """Wait for the chip to have the rule; fail where it does not get it, as with a full table."""
    status = database.state(f"ACL_RULE_TABLE|{table}|DROP", "status")
    tries = f"$(seq 1 {2 * _ACL_WAIT_S})"
    refused = f"the chip does not take the rule of {table} (full, or it cannot match this): status of ACL_RULE_TABLE"
    return (
        f'for n in {tries}; do test "$({status})" = Active && exit 0; sleep 0.5; done; '
        f"echo {shlex.quote(refused)} >&2; exit 1"
    )


def rate(facts: SwitchFacts, request: FaultRequest) -> Change:
    """Limit what the port sends by a scheduler of the whole port."""
    port, database = up_port(facts, request), _Database(facts)
    if request.choice("direction") != "tx":
        raise UnhealthyError(f"{request.where}: SONiC limits what a port sends; ask for direction tx")
    if not port.speed_bps:
        raise UnhealthyError(f"the speed of {request.where} is unknown; see `show interfaces status`")
    name = f"{_OWN}.{port.name}"
    limit = {"meter_type": "bytes", "pir": f"{int(request.number('fraction') * port.speed_bps / 8)}"}
    return Change(
        (f"rate of {port.name}",),
        (
            database.put("SCHEDULER", name, limit),
            database.put("PORT_QOS_MAP", port.name, {"scheduler": database.refer("SCHEDULER", name)}),
        ),
        (database.put_back("PORT_QOS_MAP", port.name, "scheduler"), database.drop("SCHEDULER", name)),
    )


def ecmp_member(facts: SwitchFacts, request: FaultRequest) -> Change:
    """Give the port's next hop a MAC address that no device has: SONiC takes its neighbours from the kernel."""
    port = up_port(facts, request)
    hop = facts.neighbours.get(port.name) or _gateway(facts, port.name)
    if not hop:
        raise UnhealthyError(f"{request.where} has no next hop; choose a port that a route uses")
    name = ("ip", "neighbour", "replace", hop, "lladdr")
    to_port = ("dev", port.name, "nud", "permanent")
    fixed = _fixed_address(facts, hop, port.name)
    # One that nobody has fixed is resolved again.
    back = (*name, fixed, *to_port) if fixed else ("ip", "neighbour", "del", hop, "dev", port.name)
    return Change(
        (f"neighbour of {port.name}", _link(port)),
        (shlex.join((*name, _UNUSED_MAC, *to_port)),),
        (shlex.join(back),),
    )


def _gateway(facts: SwitchFacts, port: str) -> str:
    """The first next hop over a port in the kernel's routes, "" for none."""
    found = re.search(rf"via ([0-9.]+) dev {re.escape(port)}\b", facts.printed.get("routes", ""))
    return found[1] if found else ""


def _fixed_address(facts: SwitchFacts, hop: str, port: str) -> str:
    """The MAC address that a neighbour was given by hand, "" for none."""
    words = rf"^{re.escape(hop)} dev {re.escape(port)} lladdr ([0-9a-f:]+)"
    found = re.search(words, facts.printed.get("neighbours", ""), re.MULTILINE)
    return found[1] if found else ""


def switch_down(facts: SwitchFacts, request: FaultRequest) -> Change:
    """Shut down every port that is up; the revert starts them."""
    ports = [name for name, port in facts.ports.items() if port.admin_up]
    if not ports:
        raise UnhealthyError(f"{request.host} has no port that is up; choose another switch")
    database = _Database(facts)
    return Change(
        tuple(f"link of {name}" for name in ports),
        tuple(_config("interface", "shutdown", name) for name in ports),
        tuple(
            f"{_config('interface', 'startup', name)} && {database.put_back('PORT', name, 'admin_status')}"
            for name in ports
        ),
    )


def ecmp_out(facts: SwitchFacts, request: FaultRequest) -> Change:
    """Shut down the BGP session over the port, so that no route uses it; the link stays up."""
    port, database = up_port(facts, request), _Database(facts)
    neighbour = facts.neighbours.get(port.name)
    if neighbour is None:
        raise UnhealthyError(f"{request.where} has no BGP neighbour; choose a port that a route uses")
    key = next(key for key in database.tables["BGP_NEIGHBOR"] if key.rpartition("|")[2] == neighbour)
    if str((database.row("BGP_NEIGHBOR", key) or {}).get("admin_status", "up")) != "up":
        raise UnhealthyError(f"the BGP session with {neighbour} is shut down already; choose another port")
    return Change(
        (f"BGP session of {port.name}",),
        (_config("bgp", "shutdown", "neighbor", neighbour),),
        (
            _config("bgp", "startup", "neighbor", neighbour),
            database.put_back("BGP_NEIGHBOR", key, "admin_status"),
        ),
    )


# Settings that teams get wrong. Each changes one port only, although maps and profiles are shared.


def mtu(facts: SwitchFacts, request: FaultRequest) -> Change:
    """A smaller MTU of the port (`mtu_bytes`)."""
    port, wanted = port_of(facts, request), int(request.number("mtu_bytes"))
    if not wanted < port.mtu_bytes:
        raise UnhealthyError(f"{request.where} has an MTU of {port.mtu_bytes} bytes; ask for a smaller one")
    words = ("interface", "mtu", port.name)
    back = (_config(*words, f"{port.mtu_bytes}"), _Database(facts).put_back("PORT", port.name, "mtu"))
    return Change((f"MTU of {port.name}",), (_config(*words, f"{wanted}"),), back)


def pfc_off(facts: SwitchFacts, request: FaultRequest) -> Change:
    """No PFC at one priority of the port (`priority`)."""
    port, database, priority = port_of(facts, request), _Database(facts), int(request.number("priority"))
    before = facts.qos[port.name].pfc or ()
    if priority not in before:
        raise UnhealthyError(f"{request.where} has no PFC at priority {priority}; it has it at: {before or 'none'}")
    left = ",".join(str(one) for one in before if one != priority)
    return Change(
        (f"PFC of {port.name}",),
        (database.put("PORT_QOS_MAP", port.name, {"pfc_enable": left}),),
        (database.put_back("PORT_QOS_MAP", port.name, "pfc_enable"),),
    )


def watchdog_off(facts: SwitchFacts, request: FaultRequest) -> Change:
    """No PFC watchdog at the port."""
    port, database = port_of(facts, request), _Database(facts)
    row = database.row("PFC_WD", port.name)
    if not row:
        raise UnhealthyError(f"{request.where} has no PFC watchdog; choose a port that has one")
    return Change(
        (f"PFC watchdog of {port.name}",),
        (database.drop("PFC_WD", port.name),),
        (database.put("PFC_WD", port.name, row),),
    )


def dscp_map(facts: SwitchFacts, request: FaultRequest) -> Change:
    """Another traffic class (`class`) for one DSCP (`dscp`) at the port, by a copy of its map."""
    port, database = port_of(facts, request), _Database(facts)
    dscp, wrong = f"{int(request.number('dscp'))}", f"{int(request.number('class'))}"
    of_port = (database.row("PORT_QOS_MAP", port.name) or {}).get("dscp_to_tc_map")
    found = database.row("DSCP_TO_TC_MAP", _named(of_port)) if of_port else None
    if not found:
        raise UnhealthyError(f"{request.where} has no map of its own from DSCP to traffic class; choose another port")
    if str(found.get(dscp)) == wrong:
        raise UnhealthyError(f"{request.where} has DSCP {dscp} in class {wrong} already; choose another class")
    name = f"{_OWN}_{port.name}"
    refer = {"dscp_to_tc_map": database.refer("DSCP_TO_TC_MAP", name)}
    return Change(
        (f"DSCP map of {port.name}",),
        (
            database.put("DSCP_TO_TC_MAP", name, {**found, dscp: wrong}),
            database.put("PORT_QOS_MAP", port.name, refer),
        ),
        (
            database.put_back("PORT_QOS_MAP", port.name, "dscp_to_tc_map"),
            database.drop("DSCP_TO_TC_MAP", name),
        ),
    )


def ecn_off(facts: SwitchFacts, request: FaultRequest) -> Change:
    """No marking at the port's queues."""
    port, database = port_of(facts, request), _Database(facts)
    keys = _marking(facts, request, database)
    return Change(
        (f"ECN of {port.name}",),
        tuple(database.drop_field("QUEUE", key, "wred_profile") for key in keys),
        tuple(database.put_back("QUEUE", key, "wred_profile") for key in keys),
    )


def ecn_thresholds(facts: SwitchFacts, request: FaultRequest) -> Change:
    """Thresholds of marking that are `factor` times what they are, at the port's queues, by copies of its profiles."""
    port, database, factor = port_of(facts, request), _Database(facts), request.number("factor")
    apply, revert, drops = [], [], []
    for number, key in enumerate(_marking(facts, request, database)):
        name = f"{_OWN}_{port.name}_{number}"
        profile = database.tables["WRED_PROFILE"][_named(database.tables["QUEUE"][key]["wred_profile"])]
        changed = {field: _scaled(field, value, factor) for field, value in profile.items()}
        reference = {"wred_profile": database.refer("WRED_PROFILE", name)}
        apply += [database.put("WRED_PROFILE", name, changed), database.put("QUEUE", key, reference)]
        revert.append(database.put_back("QUEUE", key, "wred_profile"))
        drops.append(database.drop("WRED_PROFILE", name))
    return Change((f"ECN of {port.name}",), tuple(apply), (*revert, *drops))


def _scaled(field: str, value: object, factor: float) -> object:
    threshold = field.endswith("_threshold") and str(value).isdecimal()
    return f"{max(1, int(int(str(value)) * factor))}" if threshold else value


def _marking(facts: SwitchFacts, request: FaultRequest, database: _Database) -> list[str]:
    """The rows of the port's queues that mark. Raises UnhealthyError where there are none, or others share them."""
    port = port_of(facts, request).name
    profiles = database.tables.get("WRED_PROFILE", {})
    found = []
    for key, row in database.tables.get("QUEUE", {}).items():
        profile = profiles.get(_named(row.get("wred_profile", "")), {})
        if port in key.rpartition("|")[0].split(",") and str(profile.get("ecn", "ecn_none")) != "ecn_none":
            found.append(key)
    if not found:
        raise UnhealthyError(f"{request.where} marks no packets; choose a port whose queues have a WRED profile")
    if shared := [key for key in found if "," in key.rpartition("|")[0]]:
        raise UnhealthyError(f"{request.where} shares its row {shared[0]} of QUEUE with other ports; split that row")
    return found


SYSTEM = System(
    "sonic",
    _READS,
    parse,
    listing,
    {
        "down": down,
        "flap": flap,
        "speed": speed,
        "blackhole": blackhole,
        "acks_lost": acks_lost,
        "rate": rate,
        "ecmp_member": ecmp_member,
        "ecmp_out": ecmp_out,
        "switch_down": switch_down,
        "mtu": mtu,
        "pfc_off": pfc_off,
        "watchdog_off": watchdog_off,
        "dscp_map": dscp_map,
        "ecn_off": ecn_off,
        "ecn_thresholds": ecn_thresholds,
    },
    fixes=_FIXES,
)
