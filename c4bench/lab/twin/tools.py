"""Programs of a SONiC switch beside `show` and `config`: its databases, resources, containers, units and restart.

A unit of `systemd-run` is a process and a file that says which; both are gone when the switch restarts, as transient
units are.
"""

import json
import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import msgspec

from c4bench.lab.twin import show
from c4bench.lab.twin.commands import Call, Refused, command
from c4bench.lab.twin.forwarding import RULES_AT_MOST, TABLES_AT_MOST
from c4bench.lab.twin.redis import DATABASES, Answer, RedisError
from c4bench.lab.twin.tables import table


@command("sonic-db-cli", "redis-cli")
def database(call: Call) -> None:
    """`sonic-db-cli DATABASE COMMAND ...`, and `redis-cli -n NUMBER COMMAND ...` of the switch's own server."""
    words = list(call.words)
    if words[:1] == ["PING"]:
        call.write("PONG")
        return
    by_number = {str(number): name for name, (number, _) in DATABASES.items()}
    name = words.pop(0) if words else ""
    if name == "-n" and words:
        name = by_number.get(words.pop(0), "")
    if name not in DATABASES or not words:
        raise Refused(f"Invalid database name or no command: {' '.join(call.words)}")
    writes = words[0].upper() not in {"HGET", "HGETALL", "KEYS", "GET", "EXISTS", "TYPE", "HKEYS", "PING"}
    if writes:
        call.require_root()
    try:
        answer = call.database(name).call(*words)
    except RedisError as error:
        raise Refused(str(error)) from None
    call.write(_printed(answer, pairs=words[0].upper() == "HGETALL"))


def _printed(answer: Answer, *, pairs: bool) -> str:
    """As sonic-db-cli prints it: a hash as a Python dict, a list by lines."""
    if isinstance(answer, list):
        if pairs:
            return str(dict(zip(answer[::2], answer[1::2], strict=True)))
        return "\n".join(_printed(one, pairs=False) for one in answer)
    return "" if answer is None else "True" if answer == "OK" else str(answer)


@command("sonic-db-dump")
def dump(call: Call) -> None:
    """`sonic-db-dump -n DATABASE [-k PATTERN] [-y]`."""
    asked = call.parse(options={"-n": "database", "-k": "pattern", "-y": "pretty!"})
    if asked.get("database") not in DATABASES:
        raise Refused(f"Invalid database name {asked.get('database', '')}")
    rows = call.database(asked["database"]).rows(asked.get("pattern", "*"))
    entries = {key: {"expireat": -1, "ttl": -0.001, "type": "hash", "value": row} for key, row in rows.items()}
    call.write(json.dumps(entries, indent=2 if "pretty" in asked else None))


@command("sonic-cfggen")
def cfggen(call: Call) -> None:
    """`sonic-cfggen -d --print-data`, in any order, or `-d -v VARIABLE` for one of DEVICE_METADATA."""
    asked = call.parse(options={"-d": "database!", "--print-data": "all!", "-v": "variable", "--var-json": "table"})
    if "all" in asked and "database" in asked:
        show.running_configuration(call)
    elif "table" in asked:
        call.write(json.dumps(call.config.table(asked["table"]), indent=4))
    elif "variable" in asked:
        words = asked["variable"].replace("[", " ").replace("]", " ").replace("'", "").replace(".", " ").split()
        call.write(call.config.row("|".join(words[:2])).get(words[-1], ""))
    else:
        raise call.wrong("this switch knows -d --print-data, -d -v and -d --var-json")


@command("crm show resources acl group", "crm show resources acl table", "crm show resources all")
def resources(call: Call) -> None:
    """`crm show resources acl group|table`: how many access lists and rules there is room for."""
    tables = call.config.table("ACL_TABLE")
    rules = [key.partition("|")[0] for key in call.config.table("ACL_RULE")]
    if not call.name.endswith("table"):
        rows = []
        for stage in ("INGRESS", "EGRESS"):
            used = sum(own.get("stage", "ingress").upper() == stage for own in tables.values())
            for point in ("PORT", "LAG", "VLAN", "RIF", "SWITCH"):
                own_used = used if point == "PORT" else 0
                rows.append((stage, point, "acl_group", own_used, TABLES_AT_MOST - own_used))
                rows.append((stage, point, "acl_table", own_used, TABLES_AT_MOST - own_used))
        headings = ("Stage", "Bind Point", "Resource Name", "Used Count", "Available Count")
        call.write("\n" + table(headings, rows, right=False) + "\n")
    if not call.name.endswith("group"):
        entries = [
            (name, resource, rules.count(name), RULES_AT_MOST - rules.count(name))
            for name in tables
            for resource in ("acl_entry", "acl_counter")
        ]
        call.write(
            "\n" + table(("Table ID", "Resource Name", "Used Count", "Available Count"), entries, right=False) + "\n"
        )


@command("counterpoll show")
def polling(call: Call) -> None:
    """`counterpoll show`."""
    rows = [
        (f"{name}_STAT", own.get("POLL_INTERVAL", ""), own.get("FLEX_COUNTER_STATUS", ""))
        for name, own in call.config.table("FLEX_COUNTER_TABLE").items()
    ]
    call.write(table(("Type", "Interval (in ms)", "Status"), rows, right=False))


@command("docker exec")
def container(call: Call) -> None:
    """`docker exec [-i] [-t] CONTAINER COMMAND ...`: the programs of all containers are the switch's own."""
    words = [word for word in call.words if word not in {"-i", "-t", "-it"}]
    _become(call, words[1:])


@command("reboot", "fast-reboot", "warm-reboot")
def restart(call: Call) -> None:
    """`reboot`: at once; what is not saved is lost."""
    call.require_root()
    Path("/run/sysrq-trigger").write_text("b")


def _become(call: Call, words: list[str]) -> None:
    """Run a program in place of this call, as whoever called. Raises Refused where there is none."""
    if not words:
        raise call.wrong("Missing argument 'COMMAND'.")
    if call.user:
        os.setuid(call.user)
    done = subprocess.run(words, check=False)
    if done.returncode:
        raise Refused("", done.returncode)


_UNITS = Path("/run/sonic/units")
# Says that systemd runs here, to whoever asks as sd_booted(3) does.
BOOTED = Path("/run/systemd/system")


class _Unit(msgspec.Struct, frozen=True):
    pid: int
    command: tuple[str, ...]
    due_s: float


_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def seconds(text: str) -> float:
    """A span of time as systemd writes it, such as `1500ms`, `2min` or `30`. Raises ValueError."""
    number = text.rstrip("abcdefghijklmnopqrstuvwxyz")
    return float(number) * _SECONDS[text[len(number) :] or "s"]


_RUN_OPTIONS = {
    "--unit": "unit",
    "-u": "unit",
    "--on-active": "after",
    "--timer-property": "timer",
    "-p": "property",
    "--property": "property",
    "--description": "description",
    "--quiet": "quiet!",
    "-q": "quiet!",
    "--collect": "collect!",
    "-G": "collect!",
    "--no-block": "block!",
    "--setenv": "environment",
    "-E": "environment",
}


@command("systemd-run")
def start_unit(call: Call) -> None:
    """`systemd-run [--unit NAME] [--on-active SPAN] COMMAND ...`."""
    call.require_root()
    words, own = list(call.words), []
    while words and words[0].startswith("-"):
        option = words.pop(0)
        if option == "--":
            break
        own.append(option)
        if option in _RUN_OPTIONS and not _RUN_OPTIONS[option].endswith("!") and words:
            own.append(words.pop(0))
    call.words = own
    asked = call.parse(options=_RUN_OPTIONS)
    if not words:
        raise Refused("Command line to execute required.")
    unit = asked.get("unit", f"run-r{os.getpid():x}").removesuffix(".service").removesuffix(".timer")
    try:
        after_s = seconds(asked.get("after", "0"))
    except (ValueError, KeyError):
        raise Refused(f"Failed to parse timer value: {asked['after']}") from None
    if _alive(unit):
        raise Refused(f"Failed to start transient service unit: Unit {unit}.service was already loaded.")
    _launch(unit, tuple(words), after_s)
    if "quiet" not in asked:
        call.write(f"Running {'timer' if 'after' in asked else ''} as unit: {unit}.timer".replace("  ", " "))


def _launch(unit: str, words: tuple[str, ...], after_s: float) -> None:
    """Start a process that runs a command after some time, and is known by its file until that has ended."""
    _UNITS.mkdir(parents=True, exist_ok=True)
    due_s = time.monotonic() + after_s
    ready, go = os.pipe()
    if os.fork():
        os.close(go)
        os.read(ready, 1)
        return
    os.setsid()
    null = os.open("/dev/null", os.O_RDWR)
    for number in range(3):
        os.dup2(null, number)
    (_UNITS / unit).write_bytes(msgspec.json.encode(_Unit(os.getpid(), words, due_s)))
    os.write(go, b"1")
    try:
        time.sleep(max(0.0, due_s - time.monotonic()))
        with suppress(OSError):
            subprocess.run(words, check=False, cwd="/")
    finally:
        (_UNITS / unit).unlink(missing_ok=True)
        os._exit(0)


def _alive(unit: str) -> _Unit | None:
    """The unit of that name, if its process is there."""
    try:
        known = msgspec.json.decode((_UNITS / unit).read_bytes(), type=_Unit)
        os.kill(known.pid, 0)
    except (OSError, msgspec.DecodeError):
        return None
    return known


@command("systemctl")
def control(call: Call) -> None:
    """`systemctl stop|is-active|status|reset-failed UNIT ...`, `list-timers`, `is-system-running`, `reboot`."""
    words = [word for word in call.words if not word.startswith("-")]
    match words[:1]:
        case ["is-system-running"]:
            call.write("running")
        case ["reboot"]:
            restart(call)
        case ["list-timers"]:
            for path in sorted(_UNITS.glob("*")):
                if unit := _alive(path.name):
                    call.write(f"{unit.due_s - time.monotonic():.1f}s left  {path.name}.timer  {path.name}.service")
        case ["stop"]:
            call.require_root()
            for name in words[1:]:
                _stop(name)
        case ["is-active" | "status"]:
            states = ["active" if _alive(_plain(name)) else "inactive" for name in words[1:]]
            call.write("\n".join(states))
            if "inactive" in states:
                raise Refused("", 3)
        case ["reset-failed" | "daemon-reload"]:
            call.require_root()
        case _:
            raise Refused(f"Unknown command verb {' '.join(words[:1])}.")


def _plain(name: str) -> str:
    return name.removesuffix(".service").removesuffix(".timer")


def _stop(name: str) -> None:
    """End a unit with all its processes: its timer while it waits, its service while it runs."""
    unit = _alive(_plain(name))
    if unit is None:
        return
    waits = time.monotonic() < unit.due_s
    if name.endswith(".timer") and not waits:
        return
    (_UNITS / _plain(name)).unlink(missing_ok=True)
    with suppress(ProcessLookupError):
        os.killpg(unit.pid, signal.SIGKILL)
