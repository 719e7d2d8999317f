"""`config` and the programs that change a switch: they write CONFIG_DB, as SONiC's do, and the orchestrator acts."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from c4bench.lab.twin import config_db, factory, show
from c4bench.lab.twin.commands import Call, Refused, command
from c4bench.lab.twin.counters import PRIORITIES
from c4bench.lab.twin.redis import set_row

_MTU_BYTES = range(68, 9217)
_TOP_PRIORITY = 10_000
_YES = {"-y": "yes!", "--yes": "yes!"}


def confirmed(asked: Mapping[str, str], question: str) -> None:
    """Ask, unless `-y` was given. Raises Refused for anything but yes."""
    if "yes" in asked:
        return
    sys.stdout.write(f"{question} [y/N]: ")
    sys.stdout.flush()
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        raise Refused("Aborted!")


@command("config interface shutdown", "config interface startup")
def interface_state(call: Call) -> None:
    """`config interface shutdown|startup NAMES`."""
    call.require_root()
    state = "up" if call.name.endswith("startup") else "down"
    for port in call.ports(call.parse("NAMES")["NAMES"]):
        call.config.write("PORT", port.name, {"admin_status": state})


@command("config interface speed")
def interface_speed(call: Call) -> None:
    """`config interface speed NAME MBPS`: up to the rate of the port's cable."""
    call.require_root()
    asked = call.parse("NAME", "SPEED", options={"-v": "verbose!"})
    port = call.port(asked["NAME"])
    known = [mbps for mbps in factory.SPEEDS_MBPS if mbps <= port.speed_mbps]
    if asked["SPEED"] not in map(str, known):
        raise Refused(f"Invalid speed specified: {asked['SPEED']}\nValid speeds:{','.join(map(str, known))}")
    call.config.write("PORT", port.name, {"speed": asked["SPEED"]})


@command("config interface mtu")
def interface_mtu(call: Call) -> None:
    """`config interface mtu NAME BYTES`."""
    call.require_root()
    asked = call.parse("NAME", "MTU", options={"-v": "verbose!"})
    port = call.port(asked["NAME"])
    if not asked["MTU"].isdecimal() or int(asked["MTU"]) not in _MTU_BYTES:
        raise call.wrong(f"Invalid value for '<interface_mtu>': {asked['MTU']} is not in the range 68<=x<=9216.")
    call.config.write("PORT", port.name, {"mtu": asked["MTU"]})


@command("config interface pfc priority")
def interface_pfc(call: Call) -> None:
    """`config interface pfc priority NAME PRIORITY on|off`."""
    call.require_root()
    asked = call.parse("NAME", "PRIORITY", "STATUS")
    port = call.port(asked["NAME"])
    if asked["PRIORITY"] not in map(str, PRIORITIES):
        raise call.wrong(f"Invalid value for 'priority': invalid choice: {asked['PRIORITY']}")
    own = call.config.row(f"PORT_QOS_MAP|{port.name}")
    if not own:
        raise Refused(f"Cannot find interface {port.name}")
    enabled = {number for number in own.get("pfc_enable", "").split(",") if number}
    enabled = enabled | {asked["PRIORITY"]} if _is_on(call, asked["STATUS"]) else enabled - {asked["PRIORITY"]}
    call.config.write("PORT_QOS_MAP", port.name, {"pfc_enable": ",".join(sorted(enabled))})


@command("config interface pfc asymmetric")
def interface_pfc_asymmetric(call: Call) -> None:
    """`config interface pfc asymmetric NAME on|off`."""
    call.require_root()
    asked = call.parse("NAME", "STATUS")
    status = "on" if _is_on(call, asked["STATUS"]) else "off"
    call.config.write("PORT", call.port(asked["NAME"]).name, {"pfc_asym": status})


def _is_on(call: Call, word: str) -> bool:
    if word not in {"on", "off"}:
        raise call.wrong(f"Invalid value: invalid choice: {word}. (choose from on, off)")
    return word == "on"


@command("config hostname")
def hostname(call: Call) -> None:
    """`config hostname NAME`: in CONFIG_DB only."""
    call.require_root()
    call.config.write("DEVICE_METADATA", "localhost", {"hostname": call.parse("NAME")["NAME"]})


@command("config save")
def save(call: Call) -> None:
    """`config save [-y] [FILE]`."""
    call.require_root()
    asked = call.parse("[FILE]", options=_YES)
    path = Path(asked.get("FILE", config_db.SAVED))
    confirmed(asked, "Existing files will be overwritten, continue?")
    call.write(f"Running command: /usr/local/bin/sonic-cfggen -d --print-data > {path}")
    path.write_text(config_db.printed(call.config) + "\n")


@command("config load", "config reload")
def load(call: Call) -> None:
    """`config load [-y] [FILE]` adds to CONFIG_DB; `config reload` clears it first."""
    call.require_root()
    asked = call.parse("[FILE]", options={**_YES, "-f": "force!", "--force": "force!", "-n": "plain!"})
    path = Path(asked.get("FILE", config_db.SAVED))
    clears = call.name.endswith("reload")
    what = "Clear current config and reload config" if clears else "Load config"
    confirmed(asked, f"{what} in config_db format from the file(s) {path} ?")
    try:
        tables = config_db.read(path)
    except (OSError, ValueError) as error:
        raise Refused(f"{path}: {error}") from None
    call.write(f"Running command: /usr/local/bin/sonic-cfggen -j {path} --write-to-db")
    (config_db.replace if clears else config_db.add)(call.config, tables)


@command("config qos reload", "config qos clear")
def qos(call: Call) -> None:
    """`config qos reload` writes the first QoS configuration again, `config qos clear` removes it."""
    call.require_root()
    call.parse("[FILE]", options={"--no-dynamic-buffer": "plain!", "--no-delay": "plain!"})
    gone = [key for name in factory.QOS_TABLES for key in call.config.keys(f"{name}|*")]
    call.config.together([("DEL", key) for key in gone] or [("PING",)])
    if call.name.endswith("reload"):
        config_db.add(call.config, factory.qos(call.layout, call.ecn))


@command("config acl add table")
def acl_add_table(call: Call) -> None:
    """`config acl add table NAME TYPE [-d DESCRIPTION] [-p PORTS] [-s ingress|egress]`."""
    call.require_root()
    options = {"-d": "description", "-p": "ports", "-s": "stage"} | {"--description": "description"}
    asked = call.parse("NAME", "TYPE", options=options | {"--ports": "ports", "--stage": "stage"})
    if (stage := asked.get("stage", "ingress")) not in {"ingress", "egress"}:
        raise call.wrong(f"Invalid value for '-s': invalid choice: {stage}. (choose from ingress, egress)")
    ports = ",".join(port.name for port in call.ports(asked.get("ports", "")))
    described = asked.get("description", asked["NAME"])
    row = {"policy_desc": described, "type": asked["TYPE"].upper(), "stage": stage, "ports@": ports}
    call.config.write("ACL_TABLE", asked["NAME"], row)


@command("config acl remove table")
def acl_remove_table(call: Call) -> None:
    """`config acl remove table NAME`."""
    call.require_root()
    name = call.parse("NAME")["NAME"]
    if not call.config.row(f"ACL_TABLE|{name}"):
        raise Refused(f"Table {name} does not exist")
    call.config.remove("ACL_TABLE", name)


class _AclEntry(msgspec.Struct, frozen=True):
    actions: dict[str, dict[str, object]] = {}
    ip: dict[str, dict[str, str]] = {}
    transport: dict[str, dict[str, str]] = {}
    l2: dict[str, dict[str, str]] = {}


class _AclEntries(msgspec.Struct, frozen=True, rename={"entries": "acl-entry"}):
    entries: dict[str, _AclEntry] = {}


class _AclSet(msgspec.Struct, frozen=True, rename={"entries": "acl-entries"}):
    entries: _AclEntries = _AclEntries()


class _AclSets(msgspec.Struct, frozen=True, rename={"sets": "acl-set"}):
    sets: dict[str, _AclSet] = {}


class _Acl(msgspec.Struct, frozen=True, rename={"sets": "acl-sets"}):
    sets: _AclSets = _AclSets()


class _AclFile(msgspec.Struct, frozen=True):
    """The form of openconfig-acl that acl-loader takes."""

    acl: _Acl = _Acl()


_PROTOCOLS = {"IP_TCP": "6", "IP_UDP": "17", "IP_ICMP": "1"}
# The fields of rules by those of the file.
_ACL_FIELDS = {
    "protocol": "IP_PROTOCOL",
    "source-ip-address": "SRC_IP",
    "destination-ip-address": "DST_IP",
    "dscp": "DSCP",
    "source-port": "L4_SRC_PORT",
    "destination-port": "L4_DST_PORT",
}


@command("config acl update full", "config acl update incremental", "acl-loader update full")
def acl_update(call: Call) -> None:
    """`config acl update full FILE`: the file's rules instead of all, or of those of its table."""
    call.require_root()
    asked = call.parse("FILE", options={"--table_name": "table", "--max_priority": "priority"})
    path = Path(asked["FILE"])
    try:
        sets = msgspec.json.decode(path.read_bytes(), type=_AclFile).acl.sets.sets
    except (OSError, msgspec.DecodeError) as error:
        raise Refused(f"{path}: {error}") from None
    wanted = {name: own for name, own in sets.items() if asked.get("table", name) == name}
    for name in wanted:
        if not call.config.row(f"ACL_TABLE|{name}"):
            raise Refused(f"Table {name} does not exist")
    gone = call.config.keys(f"ACL_RULE|{asked.get('table', '*')}|*")
    top = int(asked.get("priority", _TOP_PRIORITY))
    rows = [
        set_row(f"ACL_RULE|{name}|RULE_{number}", _rule(entry, top - int(number)))
        for name, own in wanted.items()
        for number, entry in own.entries.entries.items()
    ]
    call.config.together([("MULTI",), *(("DEL", key) for key in gone), *rows, ("EXEC",)])


def _rule(entry: _AclEntry, priority: int) -> dict[str, object]:
    action = str(entry.actions.get("config", {}).get("forwarding-action", "ACCEPT"))
    row: dict[str, object] = {"PRIORITY": priority, "PACKET_ACTION": "FORWARD" if action == "ACCEPT" else "DROP"}
    for part in (entry.ip, entry.transport):
        for field, value in part.get("config", {}).items():
            row[_ACL_FIELDS.get(field, field.upper())] = _PROTOCOLS.get(value, value)
    return row


_THRESHOLDS = {
    f"-{colour[0]}{end}": f"{colour}_{end}_threshold" for colour in ("green", "yellow", "red") for end in ("min", "max")
}
_DROPS = {f"-{colour[0]}drop": f"{colour}_drop_probability" for colour in ("green", "yellow", "red")}


@command("config ecn", "ecnconfig")
def ecn(call: Call) -> None:
    """`config ecn -profile NAME -gmin BYTES ...`; `ecnconfig -l`, `-p NAME -gmin BYTES ...`, `-q QUEUES [on|off]`."""
    options = {**_THRESHOLDS, **_DROPS, "-profile": "profile", "-p": "profile", "-q": "queues", "-l": "list!"}
    asked = call.parse("[STATUS]", options=options | {"-v": "verbose!", "-vv": "verbose!"})
    if "list" in asked:
        show.ecn(call)
        return
    call.require_root()
    if "queues" in asked:
        _mark(call, asked["queues"].split(","), asked.get("STATUS", ""))
        return
    fields = {name: asked[name] for name in (*_THRESHOLDS.values(), *_DROPS.values()) if name in asked}
    name = asked.get("profile", "")
    if not fields or not call.config.row(f"WRED_PROFILE|{name}"):
        raise Refused(f"Failed to update ECN configuration: Input arguments error. Invalid WRED profile {name}")
    if not all(value.isdecimal() for value in fields.values()):
        raise Refused("Failed to update ECN configuration: Invalid value for a threshold")
    call.config.write("WRED_PROFILE", name, fields)


def _mark(call: Call, queues: Sequence[str], status: str) -> None:
    """Turn marking of these queues of all ports on or off, or show it."""
    for queue in queues:
        for port in call.layout.ports:
            key = f"{port.name}|{queue}"
            if not status:
                marked = "wred_profile" in call.config.row(f"QUEUE|{key}")
                call.write(f"{port.name} queue {queue}: {'on' if marked else 'off'}")
            elif _is_on(call, status):
                call.config.write("QUEUE", key, {"wred_profile": factory.WRED})
            else:
                call.config.remove("QUEUE", key, "wred_profile")


@command("pfcwd start", "config pfcwd start")
def watchdog_start(call: Call) -> None:
    """`pfcwd start [--action drop|forward] PORTS|all DETECTION_MS --restoration-time MS`."""
    call.require_root()
    asked = call.parse("WORDS...", options={"--action": "action", "-a": "action", "--restoration-time": "restoration"})
    *names, detection = asked["WORDS"].split()
    if not names or not detection.isdecimal() or asked.get("action", "drop") not in {"drop", "forward", "alert"}:
        raise call.wrong("Missing argument 'DETECTION_TIME'.")
    times = {"action": asked.get("action", "drop"), "detection_time": detection}
    if "restoration" in asked:
        times["restoration_time"] = asked["restoration"]
    for port in call.ports("" if names == ["all"] else ",".join(names)):
        if call.config.row(f"PORT_QOS_MAP|{port.name}").get("pfc_enable"):
            call.config.write("PFC_WD", port.name, times)


@command("pfcwd start_default", "config pfcwd start_default")
def watchdog_default(call: Call) -> None:
    """`pfcwd start_default`."""
    call.require_root()
    config_db.add(call.config, {"PFC_WD": factory.pfc_watchdog(call.layout)})


@command("pfcwd stop", "config pfcwd stop")
def watchdog_stop(call: Call) -> None:
    """`pfcwd stop [PORTS]`."""
    call.require_root()
    for port in call.ports(call.parse("[PORTS]").get("PORTS", "")):
        call.config.remove("PFC_WD", port.name)


@command("pfcwd interval", "config pfcwd interval")
def watchdog_interval(call: Call) -> None:
    """`pfcwd interval MS`."""
    call.require_root()
    call.config.write("PFC_WD", "GLOBAL", {"POLL_INTERVAL": call.parse("MS")["MS"]})
