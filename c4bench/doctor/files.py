"""`c4bench doctor --files`: saved outputs of hosts and switches, judged by the rules that live ones are judged by."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from c4bench.budget import SAVED_OUTPUTS, Account, OverBudgetError
from c4bench.doctor import counters, misconfigurations, rules
from c4bench.doctor.facts import Counters, DropRule, Fact, Mark, RdmaPort, Remark, alike
from c4bench.doctor.lldp import Neighbour
from c4bench.doctor.outputs.formats import Format, format_of
from c4bench.doctor.outputs.layout import About
from c4bench.doctor.saved import LeftOut, Text, texts
from c4bench.doctor.settings import Device, links_of, nic_settings, switch_ports
from c4bench.foreign_text import one_line
from c4bench.inventory import cabling

_LONGEST_NAME = 120
_MOST_SHOWN = 20


class SavedDevice(msgspec.Struct, frozen=True):
    """A host, a switch or a fabric by its name in the files: what was read of it, and the remarks, the worst first."""

    device: str
    outputs: tuple[str, ...]
    remarks: tuple[Remark, ...]


class UsedFile(msgspec.Struct, frozen=True):
    """A file, what it is, and whose."""

    file: str
    output: str
    device: str


class UnusedFile(msgspec.Struct, frozen=True):
    """A file that was not used, and why."""

    file: str
    reason: str


class SavedDocument(msgspec.Struct, frozen=True):
    """What saved outputs show, with every file that was used and every one that was not."""

    devices: tuple[SavedDevice, ...]
    used: tuple[UsedFile, ...]
    unused: tuple[UnusedFile, ...]
    disagreements: tuple[str, ...] = ()

    @property
    def bad(self) -> bool:
        """Whether something is wrong."""
        return bool(self.disagreements) or any(
            one.mark is Mark.BAD for device in self.devices for one in device.remarks
        )


class _Reading(NamedTuple):
    """The counters of one text."""

    table: str
    label: str
    order: tuple[int, ...]
    file: str
    counters: tuple[Counters, ...]


class Gathered:
    """The facts about one device, and the readings of its counters."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.facts: list[Fact] = []
        self.readings: list[_Reading] = []
        self.outputs: dict[str, None] = {}
        self.switch = False

    def add(self, found: Format, text: Text, facts: Iterable[Fact]) -> None:
        """Add what a text tells."""
        own = list(facts)
        self.outputs[found.name] = None
        self.switch |= found.kind == "switch"
        counted = tuple(fact for fact in own if isinstance(fact, Counters))
        if counted:
            named = tuple(one if one.port else msgspec.structs.replace(one, port=text.label) for one in counted)
            # Tables of a switch with other columns are other tables, though they list the same ports.
            names = sorted({name for one in counted for name in one.counts}) if found.kind == "switch" else []
            self.readings.append(_Reading(" ".join([found.name, *names]), text.label, text.order, text.file, named))
        self.facts += (fact for fact in own if not isinstance(fact, Counters))

    def settings(self) -> Device:
        """What the device is set to."""
        facts = [*_joined_ports(self.facts)]
        nics = nic_settings(facts)
        system, ports = switch_ports(facts) if self.switch else ("", ())
        return Device(self.device, nics, ports, system, links_of(self._of(Neighbour)))

    def remarks(self, found: Iterable[Remark]) -> tuple[Remark, ...]:
        """What the rules say of it, beside what was `found` of its settings: each once, the worst first."""
        said = [*rules.judge([*_joined_ports(self.facts)]), *found, *self._of_counters()]
        order = [Mark.BAD, Mark.UNKNOWN, Mark.NOTE, Mark.OK]
        return tuple(sorted(dict.fromkeys(said), key=lambda one: order.index(one.mark)))

    def _of(self, kind: type[msgspec.Struct]) -> list:  # type: ignore[type-arg]
        return [fact for fact in self.facts if isinstance(fact, kind)]

    def _of_counters(self) -> Iterator[Remark]:
        drops = self._of(DropRule)
        for readings in self._series():
            ordered = _in_order(readings)
            first, last = ordered[0], ordered[-1]
            before = _by_port(first) if len(ordered) > 1 else {}
            yield from counters.judge_ports(before, _by_port(last), drops)

    def _series(self) -> list[list[_Reading]]:
        """Readings that belong together: of one table and label; two of a table that differ in the label only, too."""
        groups: dict[tuple[str, str], list[_Reading]] = defaultdict(list)
        for reading in self.readings:
            groups[reading.table, reading.label].append(reading)
        series = []
        by_table: dict[str, list[list[_Reading]]] = defaultdict(list)
        for (table, _), own in groups.items():
            by_table[table].append(own)
        for own_groups in by_table.values():
            alone = [own[0] for own in own_groups if len(own) == 1]
            if len(own_groups) == len(alone) == 2 and _ports(alone[0]) == _ports(alone[1]):
                series.append(alone)
            else:
                series += own_groups
        return series


def _by_port(reading: _Reading) -> counters.Counts:
    """The counters of each port, of which a text may have several tables."""
    found: dict[str, dict[str, int]] = defaultdict(dict)
    for one in reading.counters:
        found[one.port].update(one.counts)
    return found


def _ports(reading: _Reading) -> frozenset[str]:
    return frozenset(one.port for one in reading.counters)


def _in_order(readings: Sequence[_Reading]) -> list[_Reading]:
    """Readings by the times in their names, or, where these do not tell, by what the ports have carried."""
    orders = {reading.order for reading in readings}
    if len(orders) == len(readings) and len({len(order) for order in orders}) == 1 and all(orders):
        return sorted(readings, key=lambda reading: reading.order)
    return sorted(readings, key=lambda reading: counters.traffic(reading.counters))


def _joined_ports(facts: Sequence[Fact]) -> Iterator[Fact]:
    """The facts with one for each RDMA port: several outputs tell of it."""
    ports: dict[tuple[str, int], RdmaPort] = {}
    for fact in facts:
        if isinstance(fact, RdmaPort):
            known = ports.get((fact.device, fact.number))
            ports[fact.device, fact.number] = fact if known is None else _joined(known, fact)
        else:
            yield fact
    yield from ports.values()


def _joined(one: RdmaPort, other: RdmaPort) -> RdmaPort:
    """What either of two outputs tells of a port; a state that is not active counts."""
    worse = one if rules.is_down(one.state) else other
    joined = {
        name: getattr(worse, name) or getattr(one, name) or getattr(other, name) for name in one.__struct_fields__
    }
    return RdmaPort(**joined)


def judge_files(paths: Iterable[Path]) -> SavedDocument:
    """Read and judge saved outputs. What cannot be used is listed with the reason, and does not stop the rest."""
    left_out: list[LeftOut] = []
    devices: dict[str, Gathered] = {}
    used: dict[UsedFile, None] = {}
    unknown: dict[str, str] = {}
    account = Account("the saved outputs", SAVED_OUTPUTS)
    for text in texts(paths, left_out):
        found = format_of(text.content)
        if found is None:
            unknown.setdefault(text.file, _why_unknown(text))
            continue
        name = one_line(text.device, _LONGEST_NAME) or "unnamed"
        facts = list(found.parse(text.content, About(text.port)))
        try:
            account.spend(records=len(facts))
        except OverBudgetError as error:
            left_out.append(LeftOut(text.file, f"{error}; the rest is not read"))
            break
        if not facts and not found.quiet:
            left_out.append(LeftOut(text.file, f"{found.name}, but in a layout that is not known, or cut"))
            continue
        devices.setdefault(name, Gathered(name)).add(found, text, facts)
        used[UsedFile(text.file, found.name, name)] = None
    read = {one.file for one in used}
    unused = [UnusedFile(*one) for one in left_out]
    unused += [UnusedFile(file, reason) for file, reason in unknown.items() if file not in read]
    judged = misconfigurations.judge(one.settings() for one in devices.values())
    found_of = tuple(
        SavedDevice(one.device, tuple(one.outputs), one.remarks(judged.remarks.get(one.device, ())))
        for one in devices.values()
    )
    return SavedDocument(found_of, tuple(used), tuple(unused), tuple(judged.undecided))


def _why_unknown(text: Text) -> str:
    kind = cabling.recognise(text.content.encode())
    return f"{kind}: c4bench topology import reads it" if kind else "it is no output that is known"


def recognise(head: bytes, name: str) -> str | None:
    """What a file that begins so is, and the command that reads it: `ethtool -S: c4bench doctor --files NAME`.

    None if it is neither an output of a host or a switch nor a cabling file.
    """
    text = head.decode(errors="replace")
    found = format_of(text)
    if found is not None and found.kind != "fabric":
        return f"{found.name}: c4bench doctor --files {one_line(name, _LONGEST_NAME)}"
    kind = cabling.recognise(head)
    if kind:
        return f"{kind}: c4bench topology import {one_line(name, _LONGEST_NAME)}"
    return f"{found.name}: c4bench doctor --files {one_line(name, _LONGEST_NAME)}" if found else None


_MARKS = {Mark.BAD: "BAD ", Mark.UNKNOWN: "?   ", Mark.NOTE: "note", Mark.OK: "ok  "}
_PORTS_SHOWN = 6


def lines(document: SavedDocument) -> list[str]:
    """The page: devices with what is remarked of them, alike ports together; then the files that were not used."""
    page: list[str] = []
    for device in document.devices:
        page.append(f"{device.device}: {', '.join(device.outputs)}")
        page += _device_lines(device)
    page += [f"BAD   {line}" for line in document.disagreements]
    page += [f"not used  {one.file}: {one.reason}" for one in document.unused[:_MOST_SHOWN]]
    if len(document.unused) > _MOST_SHOWN:
        page.append(f"not used  {len(document.unused) - _MOST_SHOWN} more files (--json lists them)")
    return page


def _device_lines(device: SavedDevice) -> Iterator[str]:
    for one, places in alike((one.where, one) for one in device.remarks):
        named = [place for place in places if place]
        more = f" and {len(named) - _PORTS_SHOWN} more" if len(named) > _PORTS_SHOWN else ""
        where = f"{', '.join(named[:_PORTS_SHOWN])}{more}: " if named else ""
        yield f"  {_MARKS[one.mark]}  {where}{one.text}" + (f"  -> {one.advice}" if one.advice else "")
    if not device.remarks:
        yield "  ok    nothing in these outputs that a rule remarks on"
