"""Check that the switches of the inventory's group `switches` have the settings that RoCE needs. SONiC only.

Written from SONiC's documented tables and recorded output; never run on hardware. What its counters say is judged as in
saved outputs (`counters`, `rules`).
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypedDict, TypeVar

import msgspec

from c4bench.decoding import DecodingError, json_in, whole_number
from c4bench.doctor.counters import Counts, any_errors, judge_ports
from c4bench.doctor.facts import Counters, Fact, Mark, Remark
from c4bench.doctor.lldp import COMMAND as LLDP
from c4bench.doctor.lldp import Neighbour, neighbours
from c4bench.doctor.outputs.ethernet import ip_link
from c4bench.doctor.outputs.layout import About
from c4bench.doctor.outputs.sonic import portstat_json
from c4bench.doctor.rules import MTU_AT_LEAST
from c4bench.doctor.traffic_class import Queues
from c4bench.errors import UnhealthyError
from c4bench.foreign_text import one_line
from c4bench.inventory import Access, Inventory
from c4bench.remote import Connection, connect

_TIMEOUT_S = 60.0
_AT_ONCE = 16
_SHOWN = 80
_CONFIGURATION = ("sonic-cfggen", "-d", "--print-data")
_COUNTERS = ("portstat", "-j")
# SONiC runs lldpd in a container of that name.
_LLDP = f"{' '.join(LLDP)} || docker exec lldp {' '.join(LLDP)}"
_NOT_SONIC = "not SONiC: its QoS settings are not checked"
_LINKS = ("ip", "-s", "-j", "link")
# Between two readings of error counters. A cable that loses packets under load adds to them within seconds.
_APART_S = 5.0
Config = Mapping[str, Mapping[str, Any]]
_Rows = dict[str, dict[str, Any]]
T = TypeVar("T")


class _Tables(TypedDict, total=False):
    """The tables of CONFIG_DB that are read."""

    PORT: _Rows
    PORT_QOS_MAP: _Rows
    QUEUE: _Rows
    PFC_WD: _Rows
    WRED_PROFILE: _Rows
    DSCP_TO_TC_MAP: _Rows


class SwitchReport(msgspec.Struct, frozen=True):
    """A switch: the number of ports that are up, the problems, and its neighbours by LLDP.

    `audited` is false if its settings could not be read. `queues` has by DSCP of the inventory the traffic classes of
    the ports that are up, where they are known. `notes` are counts that are no problem, or not known to be one.
    """

    switch: str
    audited: bool
    ports: int
    problems: tuple[str, ...]
    queues: Queues = {}
    neighbours: tuple[Neighbour, ...] = ()
    notes: tuple[str, ...] = ()


def audit_all(
    inventory: Inventory, reach: Callable[[str, Access], Connection] = connect, apart_s: float = _APART_S
) -> list[SwitchReport]:
    """Check every switch; changes nothing. Counters of errors are read twice, `apart_s` apart, where there are any."""
    dscps = sorted({nic.dscp for host in inventory.hosts for nic in host.nics})

    def inspect(name: str) -> SwitchReport:
        try:
            access = inventory.access[name]
            return _ask(name, access.netns, reach(name, access), dscps, apart_s)
        except (UnhealthyError, DecodingError) as error:
            return SwitchReport(name, audited=False, ports=0, problems=(str(error),))

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(inspect, inventory.switches))


def _ask(name: str, netns: str, connection: Connection, dscps: Sequence[int], apart_s: float) -> SwitchReport:
    with connection:
        known = connection.run(["sh", "-c", f"command -v {_CONFIGURATION[0]}"], timeout_s=_TIMEOUT_S, check=False)
        lldp = connection.run(["sh", "-c", _LLDP], timeout_s=_TIMEOUT_S, check=False)
        near = neighbours(lldp.stdout) if lldp.code == 0 else ()
        if known.code:
            inside = ["nsenter", f"--net={netns}"] if netns else []
            growing, notes = _errors(lambda: _links(connection, [*inside, *_LINKS]), apart_s)
            return SwitchReport(name, False, 0, (_NOT_SONIC, *growing), neighbours=near, notes=notes)
        printed = connection.run(_CONFIGURATION, timeout_s=_TIMEOUT_S).stdout
        config: Config = msgspec.to_builtins(_json(name, printed, _Tables))
        growing, notes = _errors(lambda: _portstat(name, connection), apart_s)
    problems = (*audit(config), *dropped(config, dscps), *growing)
    return SwitchReport(name, True, len(_ports(config)), problems, queues(config, dscps), near, notes)


def _errors(read: Callable[[], Counts], apart_s: float) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What two readings of the counters show: what is wrong with a link, and what is no reason to touch a cable."""
    before: Counts = {}
    after = read()
    if any_errors(after):
        time.sleep(apart_s)
        before, after = after, read()
    remarks = list(judge_ports(before, after))
    bad = tuple(said(one) for one in remarks if one.mark is Mark.BAD)
    return bad, tuple(said(one) for one in remarks if one.mark is not Mark.BAD)


def said(remark: Remark) -> str:
    """A remark as a line of a switch."""
    where = f"{remark.where}: " if remark.where else ""
    return f"{where}{remark.text}" + (f"; {remark.advice}" if remark.advice else "")


def _portstat(name: str, connection: Connection) -> Counts:
    answer = connection.run(_COUNTERS, timeout_s=_TIMEOUT_S, check=False)
    if answer.code:
        return {}
    _json(name, answer.stdout, _Rows)
    return _counts(portstat_json(answer.stdout.decode(errors="replace"), About()))


def _links(connection: Connection, command: Sequence[str]) -> Counts:
    answer = connection.run(command, timeout_s=_TIMEOUT_S, check=False)
    return _counts(ip_link(answer.stdout.decode(errors="replace"), About())) if answer.code == 0 else {}


def _counts(facts: Iterable[Fact]) -> Counts:
    return {fact.port: fact.counts for fact in facts if isinstance(fact, Counters)}


def _json(name: str, output: bytes, kind: type[T]) -> T:
    """The JSON object in a command's output, after any text before it."""
    try:
        return json_in(output, kind)
    except DecodingError as error:
        said = one_line(output.decode(errors="replace").strip(), _SHOWN)
        raise UnhealthyError(
            f"{name}: printed no JSON as expected ({error}): {said!r}; is its SONiC supported?"
        ) from None


def _number(port: str, what: str, value: object) -> int:
    try:
        return whole_number(str(value))
    except DecodingError as error:
        raise UnhealthyError(f"{port}: {what}: {error}; correct it in CONFIG_DB") from None


def audit(config: Config) -> Iterator[str]:
    """Settings in CONFIG_DB that let RoCE packets be dropped, unmarked or fragmented, by port."""
    qos, queues, watched = (_by_port(config.get(table, {})) for table in ("PORT_QOS_MAP", "QUEUE", "PFC_WD"))
    kinds: dict[str, list[str]] = {}
    for port, settings in _ports(config).items():
        mtu = _number(port, "mtu", settings.get("mtu", 9100))
        if mtu < MTU_AT_LEAST:
            yield f"{port}: MTU {mtu}; set {MTU_AT_LEAST} or more"
        own = qos.get(port, {})
        lossless = [number for number in str(own.get("pfc_enable", "")).split(",") if number]
        if not lossless:
            yield f"{port}: PFC is off; set pfc_enable in PORT_QOS_MAP"
            continue
        kinds.setdefault(",".join(lossless), []).append(port)
        if not own.get("dscp_to_tc_map"):
            yield f"{port}: no dscp_to_tc_map, so DSCP does not select a lossless queue; set it in PORT_QOS_MAP"
        for number in lossless:
            if not _marks_ecn(config, queues.get(f"{port}|{number}", {})):
                yield f"{port}: queue {number} is lossless without ECN marking; set a wred_profile with ecn"
        if port not in watched:
            yield f"{port}: no PFC watchdog, so a pause storm could stop the fabric; add the port to PFC_WD"
    yield from unlike_priorities({port: priorities for priorities, ports in kinds.items() for port in ports})


def unlike_priorities(by_port: Mapping[str, str]) -> Iterator[str]:
    """Whether ports, given with their lossless priorities, have different ones; ports without are left out."""
    kinds: dict[str, list[str]] = {}
    for port, priorities in by_port.items():
        if priorities.strip():
            kinds.setdefault(priorities, []).append(port)
    if len(kinds) > 1:
        listed = "; ".join(f"{priorities} on {len(ports)} ports ({ports[0]})" for priorities, ports in kinds.items())
        yield f"ports have different lossless priorities: {listed}"


def dropped(config: Config, dscps: Iterable[int]) -> Iterator[str]:
    """DSCPs of the inventory whose packets may be dropped, by the traffic class that ports put them in."""
    ports: dict[tuple[int, int, str], list[str]] = {}
    for port, dscp, number, lossless in _classes(config, dscps):
        if str(number) not in lossless.split(","):
            ports.setdefault((dscp, number, lossless), []).append(port)
    for (dscp, number, lossless), users in ports.items():
        yield (
            f"DSCP {dscp} of the inventory is traffic class {number} on {len(users)} ports ({users[0]}), where PFC is "
            f"on at {lossless or 'none'}; correct `dscp` in c4, or dscp_to_tc_map"
        )


def queues(config: Config, dscps: Iterable[int]) -> Queues:
    """The traffic classes of DSCPs on the ports that are up; those that CONFIG_DB does not state are left out."""
    found: dict[int, set[int]] = {}
    for _, dscp, number, _ in _classes(config, dscps):
        found.setdefault(dscp, set()).add(number)
    return {dscp: tuple(sorted(numbers)) for dscp, numbers in found.items()}


def _classes(config: Config, dscps: Iterable[int]) -> Iterator[tuple[str, int, int, str]]:
    """Port, DSCP, its traffic class, and the port's pfc_enable; nothing where the map is not in CONFIG_DB."""
    qos, maps = _by_port(config.get("PORT_QOS_MAP", {})), config.get("DSCP_TO_TC_MAP", {})
    for dscp in dscps:
        for port in _ports(config):
            own = qos.get(port, {})
            number = maps.get(_name(own.get("dscp_to_tc_map", "")), {}).get(str(dscp))
            if number is not None:
                yield port, dscp, _number(port, f"traffic class of DSCP {dscp}", number), str(own.get("pfc_enable", ""))


def _ports(config: Config) -> dict[str, Mapping[str, Any]]:
    return {port: own for port, own in config.get("PORT", {}).items() if own.get("admin_status") == "up"}


def _by_port(table: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The table by single port; a key may name several, as `Ethernet0,Ethernet4|3`."""
    by_port: dict[str, Mapping[str, Any]] = {}
    for key, row in table.items():
        ports, bar, rest = key.partition("|")
        by_port |= {f"{port}{bar}{rest}": row for port in ports.split(",")}
    return by_port


def _marks_ecn(config: Config, queue: Mapping[str, Any]) -> bool:
    profile = config.get("WRED_PROFILE", {}).get(_name(queue.get("wred_profile", "")), {})
    return str(profile.get("ecn", "ecn_none")) != "ecn_none"


def _name(reference: object) -> str:
    """The name in a reference to another table's row: `AZURE`, in older versions `[DSCP_TO_TC_MAP|AZURE]`."""
    return str(reference).strip("[]").rpartition("|")[2]
