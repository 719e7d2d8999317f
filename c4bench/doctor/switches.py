"""Ask the switches of the inventory's group `switches` for their settings, neighbours and counters of errors.

Which system a switch runs is the inventory's fact `os`, or else found by the commands it has. Written from documented
and recorded output; never run on hardware. What they are set to is judged with the hosts' settings
(`misconfigurations`), and what their counters say as in saved outputs (`counters`).
"""

import shlex
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import msgspec

from c4bench.decoding import DecodingError, json_in
from c4bench.doctor.counters import Counts, any_errors, judge_ports
from c4bench.doctor.facts import Counters, Fact, Mark, Remark
from c4bench.doctor.lldp import COMMAND as LLDP
from c4bench.doctor.lldp import Neighbour, neighbours
from c4bench.doctor.outputs.ethernet import ip_link
from c4bench.doctor.outputs.layout import About
from c4bench.doctor.outputs.sonic import portstat_json
from c4bench.doctor.settings import PortSettings, of_switch
from c4bench.errors import UnhealthyError, UsageError, meant
from c4bench.foreign_text import one_line
from c4bench.inventory import Access, Inventory
from c4bench.remote import Completed, Connection, connect
from c4bench.switches import linux, sonic
from c4bench.switches.facts import SwitchFacts
from c4bench.switches.system import System
from c4bench.switches.systems import SYSTEMS

_TIMEOUT_S = 60.0
_AT_ONCE = 16
_SHOWN = 80
_COUNTERS = ("portstat", "-j")
# SONiC runs lldpd in a container of that name.
_LLDP = f"{' '.join(LLDP)} || docker exec lldp {' '.join(LLDP)}"
_UNKNOWN = "its system is not known: its settings are not checked; state `c4: {os: ...}`"
_LINKS = ("ip", "-s", "-j", "link")
# Between two readings of error counters. A cable that loses packets under load adds to them within seconds.
_APART_S = 5.0
_Rows = dict[str, dict[str, Any]]
T = TypeVar("T")


class SwitchReport(msgspec.Struct, frozen=True):
    """A switch: the number of ports that are up, the problems, and its neighbours by LLDP.

    `audited` is false if its settings could not be read. `settings` are those of its ports, under its `system`. `notes`
    are counts that are no problem, or not known to be one.
    """

    switch: str
    audited: bool
    ports: int
    problems: tuple[str, ...]
    neighbours: tuple[Neighbour, ...] = ()
    notes: tuple[str, ...] = ()
    system: str = ""
    settings: tuple[PortSettings, ...] = ()


def ask_all(
    inventory: Inventory, reach: Callable[[str, Access], Connection] = connect, apart_s: float = _APART_S
) -> list[SwitchReport]:
    """Ask every switch; changes nothing. Counters of errors are read twice, `apart_s` apart, where there are any."""

    def inspect(name: str) -> SwitchReport:
        try:
            access = inventory.access[name]
            stated = _system(name, inventory.facts[name].os) if name in inventory.facts else None
            return _ask(name, access.netns, reach(name, access), stated, apart_s)
        except (UnhealthyError, DecodingError) as error:
            return SwitchReport(name, audited=False, ports=0, problems=(str(error),))

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(inspect, inventory.switches))


def _system(name: str, stated: str) -> System | None:
    """The system that the inventory states, None for none. Raises UsageError."""
    if stated and stated not in SYSTEMS:
        raise UsageError(f"{name}: {stated!r} is no system of switches{meant(stated, SYSTEMS, '')}")
    return SYSTEMS[stated] if stated else None


def _ask(name: str, netns: str, connection: Connection, stated: System | None, apart_s: float) -> SwitchReport:
    with connection:
        lldp = connection.run(["sh", "-c", _LLDP], timeout_s=_TIMEOUT_S, check=False)
        near = neighbours(lldp.stdout) if lldp.code == 0 else ()
        found = _facts(name, connection, stated) if not netns else None
        growing, notes = _errors(lambda: _counts_of(name, netns, connection, found), apart_s)
    if found is None:
        return SwitchReport(name, False, 0, (_UNKNOWN, *growing), neighbours=near, notes=notes)
    settings = of_switch(found)
    up = sum(bool(port.admin_up) for port in settings)
    return SwitchReport(name, True, up, growing, near, notes, found.system, settings)


def _facts(name: str, connection: Connection, stated: System | None) -> SwitchFacts | None:
    """What the switch says of itself, None if it runs a system that is not known. Raises UnhealthyError."""
    answering = (one for one in SYSTEMS.values() if one.name != linux.SYSTEM.name and _answers(connection, one))
    system = stated or next(answering, None)
    if system is None:
        return None
    printed: dict[str, str] = {}
    for what, read in system.reads.items():
        answer = _shell(connection, system, read.command)
        if answer.code == 0:
            printed[what] = answer.stdout.decode(errors="replace")
        elif read.needed:
            words = one_line((answer.stderr or answer.stdout).decode(errors="replace").strip(), _SHOWN)
            raise UnhealthyError(f"{name}: `{read.command}` failed: {words or f'code {answer.code}'}")
    try:
        return system.parse(printed)
    except UnhealthyError as error:
        raise UnhealthyError(f"{name}: {error}") from None


def _answers(connection: Connection, system: System) -> bool:
    """Whether the first command that the system must have is one of the switch's.

    The shell must say where it is: the prompt of another system may refuse such a line and end without an error.
    """
    word = next(shlex.split(read.command)[0] for read in system.reads.values() if read.needed)
    answer = _shell(connection, system, f"command -v {word}")
    said = answer.stdout.decode(errors="replace").splitlines()
    return answer.code == 0 and word in {line.strip().rpartition("/")[2] for line in said}


def _shell(connection: Connection, system: System, line: str) -> Completed:
    return connection.run(system.enter, input=f"{line}\n".encode(), timeout_s=_TIMEOUT_S, check=False)


def _counts_of(name: str, netns: str, connection: Connection, found: SwitchFacts | None) -> Counts:
    """The counters of errors; those of other systems are judged from saved outputs only."""
    if found is None or found.system == linux.SYSTEM.name:
        inside = ["nsenter", f"--net={netns}"] if netns else []
        return _links(connection, [*inside, *_LINKS])
    return _portstat(name, connection) if found.system == sonic.SYSTEM.name else {}


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
