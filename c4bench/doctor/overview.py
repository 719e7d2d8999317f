"""What `c4bench doctor --hosts` says of an inventory: a JSON document, which a run directory keeps too, and text.

Text has a row for each group of equal hosts, below it what is missing and what to do.
"""

import re
from collections.abc import Iterable, Sequence
from itertools import groupby

import msgspec

from c4bench.c4p.knowledge.cabling import CableDifference
from c4bench.doctor import misconfigurations
from c4bench.doctor.capabilities import NAMES, Capability, Report, State
from c4bench.doctor.facts import Mark, Remark, alike
from c4bench.doctor.lldp import compare_neighbours
from c4bench.doctor.settings import Device, links_of, stated_links
from c4bench.doctor.switches import SwitchReport
from c4bench.inventory import Inventory


class DeviceRemark(msgspec.Struct, frozen=True):
    """A remark about a host or a switch."""

    device: str
    remark: Remark


class Document(msgspec.Struct, frozen=True):
    """Every host and every switch of an inventory, in its order.

    `misconfigurations` are wrong settings, `disagreements` settings that differ between them where nothing says which
    is right, `differences` cables that differ from the inventory's graph.
    """

    hosts: tuple[Report, ...]
    switches: tuple[SwitchReport, ...]
    misconfigurations: tuple[DeviceRemark, ...] = ()
    disagreements: tuple[str, ...] = ()
    differences: tuple[CableDifference, ...] = ()

    @property
    def bad(self) -> bool:
        """Whether the page has a line that begins with BAD."""
        hosts = any(report.bad or any(one.mark is Mark.BAD for one in report.remarks) for report in self.hosts)
        switches = any(report.audited and report.problems for report in self.switches)
        settings = any(one.remark.mark is Mark.BAD for one in self.misconfigurations)
        return hosts or switches or settings or bool(self.disagreements or self.differences)


def document(inventory: Inventory, hosts: Sequence[Report], switches: Sequence[SwitchReport]) -> Document:
    """The reports, compared with each other, and what LLDP finds of the cables that the inventory states."""
    seen = {report.host: report.neighbours for report in hosts}
    seen |= {report.switch: report.neighbours for report in switches}
    graph = inventory.graph
    stated = stated_links(graph, inventory.hosts) if graph else {}
    links = {name: {**stated.get(name, {}), **links_of(of)} for name, of in seen.items()}
    devices = [Device(report.host, report.settings, links=links[report.host]) for report in hosts]
    devices += [
        Device(report.switch, ports=report.settings, system=report.system, links=links[report.switch])
        for report in switches
    ]
    dscps = {nic.dscp for host in inventory.hosts for nic in host.nics}
    judged = misconfigurations.judge(devices, dscps, _priorities(inventory))
    wrong = [DeviceRemark(name, remark) for name, of in judged.remarks.items() for remark in of]
    alone = {report.host for report in hosts if report.lldp and not report.neighbours}
    cables = () if graph is None else compare_neighbours(graph, inventory.hosts, seen, alone)
    return Document(tuple(hosts), tuple(switches), tuple(wrong), tuple(judged.undecided), cables)


def _priorities(inventory: Inventory) -> dict[int, int]:
    """The lossless priority of each DSCP of the data, as far as the inventory states it and hosts do not differ."""
    stated: dict[int, set[int]] = {}
    for host in inventory.hosts:
        if (priority := inventory.facts[host.name].priority) is None:
            continue
        for nic in host.nics:
            stated.setdefault(nic.dscp, set()).add(priority)
    return {dscp: found.pop() for dscp, found in stated.items() if len(found) == 1}


_SHOWN = 6
_MARKS = {Mark.BAD: "BAD", Mark.UNKNOWN: "?  ", Mark.NOTE: "no ", Mark.OK: "ok "}
_STATE_TEXT = {State.REAL: "real", State.EMULATED: "emulated", State.ABSENT: "-"}


def lines(reports: Sequence[Report]) -> list[str]:
    """The lines of the page."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for report in reports:
        rows.setdefault(_row(report), []).append(report.host)
    names = [_abbreviate(hosts) for hosts in rows.values()]
    table = [("", *NAMES), *((name, *row) for name, row in zip(names, rows, strict=True))]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    page = ["  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip() for row in table]
    return [*page, *_absences(reports), *_clock(reports)]


def switch_lines(reports: Iterable[SwitchReport]) -> list[str]:
    """A line for each problem and the switches that have it, or for the switches without one; then the notes."""
    alike: dict[tuple[bool, tuple[str, ...]], list[str]] = {}
    noted: dict[str, list[str]] = {}
    for report in reports:
        alike.setdefault((report.audited, report.problems), []).append(report.switch)
        for note in report.notes:
            noted.setdefault(note, []).append(report.switch)
    lines = []
    for (audited, problems), names in alike.items():
        mark = ("BAD" if problems else "ok ") if audited else "?  "
        lines += [f"{mark}  switch {_abbreviate(names)}: {problem}" for problem in problems or ("answers",)]
    return lines + [f"?    switch {_abbreviate(names)}: {note}" for note, names in noted.items()]


def setting_lines(document: Document) -> list[str]:
    """A line for each wrong setting, with the ports that have it and the command that corrects it."""
    named = [(f"{one.device} {one.remark.where}".strip(), one.remark) for one in document.misconfigurations]
    lines = [
        f"{_MARKS[one.mark]}  {_abbreviate(places)}: {one.text}" + (f"  -> {one.advice}" if one.advice else "")
        for one, places in alike(named)
    ]
    known = any(host.settings for host in document.hosts) or any(switch.settings for switch in document.switches)
    if known and not lines:
        return ["ok   settings of switches and NICs: as RDMA needs them"]
    return lines


def remark_lines(reports: Iterable[Report]) -> list[str]:
    """A line for each thing that the tools of hosts show to be wrong, and the hosts that have it."""
    alike: dict[tuple[str, str], list[str]] = {}
    for report in reports:
        for one in report.remarks:
            if one.mark is Mark.BAD:
                where = f"{one.where}: " if one.where else ""
                alike.setdefault((f"{where}{one.text}", one.advice), []).append(report.host)
    return [
        f"BAD  {_abbreviate(hosts)}: {text}" + (f"  -> {advice}" if advice else "")
        for (text, advice), hosts in alike.items()
    ]


def cable_lines(document: Document) -> list[str]:
    """A line for each difference between LLDP and the inventory's graph, or for all that agree."""
    seen = sum(map(bool, [report.neighbours for report in document.hosts] + [s.neighbours for s in document.switches]))
    if not seen:
        return ["?    cables: no LLDP neighbours, so they are not checked; run lldpd on hosts and switches"]
    agreed = f"ok   cables: what {seen} hosts and switches see by LLDP is as stated"
    return [f"BAD  cable {difference}" for difference in document.differences] or [agreed]


def _row(report: Report) -> tuple[str, ...]:
    states = {
        capability.name: "BAD" if capability.bad else _STATE_TEXT[capability.state]
        for capability in report.capabilities
    }
    return tuple(states.get(name, "?") for name in NAMES)


def _absences(reports: Iterable[Report]) -> list[str]:
    """What is missing, needed capabilities first, grouped by capability and reason."""
    absences: dict[tuple[bool, str, str, str], list[str]] = {}
    for report in reports:
        for capability in report.capabilities:
            if capability.state is State.ABSENT:
                absences.setdefault(
                    (not capability.bad, capability.name, capability.fix, _detail(capability, report.host)), []
                ).append(report.host)
    lines = []
    for (fine, name, fix), kind in groupby(sorted(absences.items()), lambda item: item[0][:3]):
        rows = list(kind)
        rest = [host for _, hosts in rows[_SHOWN:] for host in hosts]
        groups = [(_abbreviate(hosts), detail) for (*_, detail), hosts in rows[:_SHOWN]]
        groups += [(_abbreviate(rest), "likewise")] if rest else []
        mark, advice = "no " if fine else "BAD", f"  -> {fix}" if fix else ""
        lines += [f"{mark}  {name}: {hosts}: {detail}{advice}" for hosts, detail in groups]
    return lines


def _detail(capability: Capability, host: str) -> str:
    """The detail without the host's own name, so that equal hosts can be grouped."""
    return re.sub(rf"(?<![\w.-]){re.escape(host)}/", "NIC ", capability.detail.removeprefix(f"{host}: "))


def _clock(reports: Iterable[Report]) -> list[str]:
    clocks = [report.clock for report in reports if report.clock]
    if not clocks:
        return []
    apart = max(abs(clock.offset_s) for clock in clocks)
    worst = max(clock.error_s for clock in clocks)
    return [f"clocks: {apart:.6f} s from ours at most, known to within {worst:.6f} s"]


def _abbreviate(hosts: Sequence[str]) -> str:
    more = f" and {len(hosts) - _SHOWN} more" if len(hosts) > _SHOWN else ""
    return f"{', '.join(hosts[:_SHOWN])}{more}"
