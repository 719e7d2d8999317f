"""What facts about one host or switch mean: the one set of rules, for live devices and for saved outputs. Pure."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from c4bench.doctor.facts import (
    Advice,
    EcnProfile,
    FabricLink,
    Fact,
    Firmware,
    Gid,
    Gpu,
    Interface,
    KernelLine,
    Mark,
    Module,
    Nearness,
    Qos,
    RdmaPort,
    Remark,
    Setting,
    Watchdog,
)
from c4bench.doctor.lldp import Neighbour
from c4bench.foreign_text import one_line
from c4bench.units import format_rate

T = TypeVar("T")
_LONGEST = 160
_SHOWN = 6
_FLAPS_AT_LEAST = 2
_DARK_DBM = -30.0
_APART_DB = 3.0
_CODE_V2 = "v2"
_ROCE_DSCP = 26  # what NVIDIA's guides give RoCE; its priority is worth a word where it is not lossless
_USUAL_MTU_BYTES = 4096
MTU_AT_LEAST = 4200  # bytes: what a port needs for RDMA packets of 4096
# Settings that are wrong for every host with RDMA NICs, or for one with several NICs in a subnet.
_SETTINGS = {
    "kernel.numa_balancing": ({"0"}, "moves pages of pinned buffers' neighbours about; set it to 0"),
    "vm.zone_reclaim_mode": ({"0"}, "makes allocations wait; set it to 0"),
    "net.ipv4.conf.all.rp_filter": ({"0", "2"}, "drops packets that come in by another NIC of a subnet; set 0 or 2"),
    "net.ipv4.conf.all.arp_ignore": (
        {"1", "2"},
        "lets a NIC answer for the address of another; with several NICs in one subnet set 1 or 2",
    ),
    "net.ipv4.conf.all.arp_announce": (
        {"1", "2"},
        "lets a NIC announce the address of another; with several NICs in one subnet set 2",
    ),
}


def is_down(state: str) -> bool:
    """Whether the state of an RDMA port, as the kernel or a tool writes it, is any but active."""
    return not state.upper().removeprefix("PORT_").startswith("ACTIVE")


def judge(facts: Sequence[Fact]) -> Iterator[Remark]:
    """The remarks about one device, without those about its counters (`counters.judge_ports`)."""
    yield from rdma_ports(_of(facts, RdmaPort))
    yield from gids(_of(facts, Gid))
    yield from firmware(_of(facts, Firmware))
    yield from interfaces(_of(facts, Interface))
    for qos in _of(facts, Qos):
        yield from queueing(qos)
    yield from modules(_of(facts, Module))
    yield from kernel_lines(_of(facts, KernelLine))
    yield from gpus(_of(facts, Gpu))
    yield from settings(_of(facts, Setting))
    yield from watchdogs(_of(facts, Watchdog))
    yield from ecn_profiles(_of(facts, EcnProfile))
    yield from fabric_links(_of(facts, FabricLink))
    yield from nearness(_of(facts, Nearness))
    yield from tool_advice(_of(facts, Advice))
    for one in _of(facts, Neighbour):
        alias = f" (alias {one.alias})" if one.alias else ""
        yield Remark(Mark.OK, "cabling", one.interface, f"is cabled to {one.system} {one.port}{alias}")


def _of(facts: Iterable[Fact], kind: type[T]) -> list[T]:
    return [fact for fact in facts if isinstance(fact, kind)]


def rdma_ports(ports: Sequence[RdmaPort]) -> Iterator[Remark]:
    """Ports that are not active, and those with a smaller MTU than they can have."""
    down = [port for port in ports if is_down(port.state)]
    active = len(ports) - len(down)
    for port in down:
        physical = f", physical state {port.physical}" if port.physical else ""
        others = f"; {active} of {len(ports)} ports are active" if len(ports) > 1 else ""
        text = f"is {port.state}{physical}{others}; the cause is not in this output"
        yield Remark(Mark.BAD, "link down", port.name, text, _why_down(port.physical))
    if ports and not down:
        yield Remark(Mark.OK, "link", "", f"all {len(ports)} RDMA ports are active")
    for port in ports:
        if 0 < port.mtu_bytes < min(port.most_mtu_bytes, _USUAL_MTU_BYTES):
            text = f"has an RDMA MTU of {port.mtu_bytes}, and the device can do {port.most_mtu_bytes}"
            yield Remark(Mark.NOTE, "mtu", port.name, text, "set an MTU of 4200 or more on the interface and its path")
    yield from _odd_one_out("rate", {port.name: port.rate for port in ports if port.rate and not is_down(port.state)})


def _why_down(physical: str) -> str:
    word = physical.upper().replace("_", "")
    if "POLLING" in word:
        return "no signal arrives: check the cable, the optics, and whether the switch port is up"
    if "DISABLED" in word:
        return "see whether it was set down by hand (ip link), then the switch port, the optic and the cable"
    return "check the interface (ip link), the switch port, the optic and the cable"


def _odd_one_out(what: str, values: Mapping[str, str]) -> Iterator[Remark]:
    """Ports that differ from the most of three or more siblings."""
    common = Counter(values.values()).most_common(1)
    if len(values) < 3 or common[0][1] == len(values) or common[0][1] * 2 <= len(values):
        return
    for name, value in values.items():
        if value != common[0][0]:
            text = f"has {what} {value}, and {common[0][1]} of its siblings have {common[0][0]}"
            yield Remark(Mark.NOTE, what, name, text, "find out why it differs")


def gids(entries: Sequence[Gid]) -> Iterator[Remark]:
    """The index of RoCE v2 over IPv4 that most ports have."""
    indices: dict[tuple[str, int], list[int]] = {(one.device, one.number): [] for one in entries}
    for one in dict.fromkeys(entries):
        if one.version.lower() == _CODE_V2 and one.address:
            indices[one.device, one.number].append(one.index)
    with_one = {port: tuple(own) for port, own in indices.items() if own}
    if not with_one:
        return
    usual, _ = Counter(with_one.values()).most_common(1)[0]
    alike = [device for (device, _), own in with_one.items() if own == usual]
    yield Remark(Mark.OK, "gid", "", f"RoCE v2 over IPv4 is GID index {_numbers(usual)} on {_some(alike)}")


def firmware(found: Sequence[Firmware]) -> Iterator[Remark]:
    """Adapters of one kind with different firmware."""
    kinds: dict[str, dict[str, str]] = defaultdict(dict)
    for one in found:
        kinds[one.kind][one.device] = one.version
    for kind, versions in kinds.items():
        users: dict[str, list[str]] = defaultdict(list)
        for device, version in versions.items():
            users[version].append(device)
        if len(users) > 1:
            listed = "; ".join(f"{version} on {_some(devices)}" for version, devices in sorted(users.items()))
            text = f"adapters of {kind} have different firmware: {listed}"
            yield Remark(Mark.NOTE, "firmware", "", text, "give them the same")


def interfaces(found: Sequence[Interface]) -> Iterator[Remark]:
    """Interfaces that are set up and have no link, or a slower one than they can have."""
    for one in found:
        if one.up is False and one.admin_up:
            advice = "check the cable, the optics, and the port at its other end"
            yield Remark(Mark.NOTE, "link down", one.name, "is set up and has no link", advice)
        elif one.up is False and one.admin_up is False:
            yield Remark(Mark.NOTE, "link down", one.name, "is set down by hand")
        elif one.up is False:
            advice = "see whether it was set down by hand, then the cable, the optics and its other end"
            yield Remark(Mark.NOTE, "link down", one.name, "has no link; whether it is meant to is not known", advice)
        if one.up is not False and 0 < one.rate_bps < one.most_rate_bps:
            text = f"runs at {format_rate(one.rate_bps)} and can do {format_rate(one.most_rate_bps)}"
            advice = "check that cable and switch port are meant to be slower"
            yield Remark(Mark.NOTE, "rate", one.name, text, advice)


def queueing(qos: Qos) -> Iterator[Remark]:
    """Which packets of an interface are lossless by its settings, and classes that lossless and other ones share.

    What is wrong in a fabric `misconfigurations` says.
    """
    where = qos.netdev
    if qos.pfc is None:
        yield Remark(Mark.UNKNOWN, "qos", where, "which priorities have PFC is not stated", "mlnx_qos -i INTERFACE")
    elif qos.pfc and not qos.trust:
        text = f"PFC is on at priority {_numbers(qos.pfc)}, and the interface does not say which field it trusts"
        yield Remark(Mark.UNKNOWN, "qos", where, text, "mlnx_qos -i INTERFACE --trust dscp")
    elif qos.pfc and qos.priorities:
        yield from _lossless(qos)
        yield from _class_problems(qos)


def _lossless(qos: Qos) -> Iterator[Remark]:
    """The packets that wait rather than being dropped, and by traffic class those that do not."""
    pfc = qos.pfc or ()
    dscps = [dscp for dscp, priority in enumerate(qos.priorities) if priority in pfc]
    shares = "; ".join(dict.fromkeys(_share(qos, priority) for priority in pfc))
    cable = f"; buffers for {qos.cable_m} m of cable" if qos.cable_m else ""
    text = f"lossless are packets of DSCP {ranges(dscps) or 'none'} (priority {_numbers(pfc)}; {shares}{cable})"
    yield Remark(Mark.OK if dscps else Mark.BAD, "qos", qos.netdev, text, "" if dscps else "map a DSCP to it")
    others: dict[str, list[int]] = defaultdict(list)
    for priority in sorted(set(qos.priorities) - set(pfc)):
        others[_share(qos, priority)].append(priority)
    for share, priorities in others.items():
        own = {number: [dscp for dscp, of in enumerate(qos.priorities) if of == number] for number in priorities}
        listed = ", ".join(f"{number} (DSCP {ranges(of)})" for number, of in own.items())
        roce = next((number for number, of in own.items() if _ROCE_DSCP in of), None)
        named = "" if roce is None else f"; DSCP {_ROCE_DSCP}, which guides give RoCE, has priority {roce}"
        text = f"not lossless is priority {listed}; {share}{named}"
        yield Remark(Mark.NOTE, "qos", qos.netdev, text, "" if roce is None else "RoCE must not use it")


def _share(qos: Qos, priority: int) -> str:
    """The traffic class of a priority, its scheduling and its share."""
    for queue in qos.queues:
        if priority in queue.priorities:
            share = f" {queue.share_percent} %" if queue.share_percent else ""
            return f"traffic class {queue.number}, {queue.scheduling}{share}"
    return "traffic class not stated"


def _class_problems(qos: Qos) -> Iterator[Remark]:
    """Traffic classes that lossless and other packets share."""
    for queue in qos.queues:
        paused = set(queue.priorities) & set(qos.pfc or ())
        other = set(queue.priorities) - paused
        if paused and other:
            text = (
                f"traffic class {queue.number} has priority {_numbers(sorted(paused))} with PFC and "
                f"{_numbers(sorted(other))} without: a pause stops both"
            )
            yield Remark(Mark.NOTE, "qos", qos.netdev, text, "give the lossless priority a traffic class of its own")


def modules(found: Sequence[Module]) -> Iterator[Remark]:
    """Alarms of optics, and parts of one that receive much less light than the others."""
    for one in found:
        if one.alarms:
            text = f"the module reports {_some(one.alarms)}"
            yield Remark(Mark.BAD, "module", one.port, text, "clean or change the optic, then the cable")
        if len(one.received_dbm) > 1 and max(one.received_dbm) - min(one.received_dbm) >= _APART_DB:
            weak = one.received_dbm.index(min(one.received_dbm)) + 1
            dark = min(one.received_dbm) <= _DARK_DBM
            text = (
                f"channel {weak} receives {min(one.received_dbm):.1f} dBm, another one {max(one.received_dbm):.1f} dBm"
            )
            yield Remark(Mark.BAD if dark else Mark.NOTE, "module", one.port, text, "clean the connector")


def kernel_lines(found: Sequence[KernelLine]) -> Iterator[Remark]:
    """What the kernel's log says of NICs, GPUs and the bus: each kind of line of a device once, with its number."""
    groups: dict[tuple[str, str], list[KernelLine]] = defaultdict(list)
    for one in found:
        groups[one.kind, one.subject].append(one)
    for (kind, subject), lines in groups.items():
        mark, advice = KERNEL_KINDS[kind]
        if kind == "link down" and len(lines) < _FLAPS_AT_LEAST:
            mark, advice = Mark.NOTE, "once only: see whether either end restarted"
        times = f" ({len(lines)} times)" if len(lines) > 1 else ""
        yield Remark(mark, kind, subject, f"{one_line(lines[-1].text, _LONGEST)}{times}", advice)


# By kind of a line of the kernel's log: its mark and the advice.
KERNEL_KINDS: dict[str, tuple[Mark, str]] = {
    "gpu lost": (Mark.BAD, "drain the host; reset it, and change the GPU if it happens again"),
    "gpu memory": (Mark.BAD, "drain the host, reset the GPU, and change it if rows cannot be remapped any more"),
    "gpu link": (Mark.BAD, "drain the host: NVLink errors; reset the GPUs, then check the baseboard"),
    "gpu firmware": (Mark.BAD, "drain the host and reset the GPU; try another driver if it happens again"),
    "gpu program": (Mark.NOTE, "mostly an error of the program that ran; no reason to change the GPU"),
    "gpu other": (Mark.NOTE, "look the number up in NVIDIA's list of Xid errors"),
    "link down": (Mark.BAD, "the link went down again and again: check the cable and the optics at both ends"),
    "module": (Mark.BAD, "check the optic or the cable's connector at this port"),
    "nic failed": (Mark.BAD, "drain the host: the NIC's firmware or bus failed; reset or change the NIC"),
    "nic power": (Mark.BAD, "the slot gives too little power: check the riser and the power cables"),
    "bus error": (Mark.BAD, "check the slot, the riser and the card of this bus address"),
    "bus corrected": (Mark.NOTE, "corrected, so nothing was lost; many of them point to the slot or the riser"),
    "memory": (Mark.BAD, "change the memory module"),
    "out of memory": (Mark.NOTE, "the kernel ended a process: the program took too much memory"),
}


_GPU_RESET = "drain the host and reset the GPU; see its Xid errors in dmesg"
_GPU_SLOW = "check its cooling and its power supply"


def gpus(found: Sequence[Gpu]) -> Iterator[Remark]:
    """GPUs with troubles that their driver reports; GPUs are named in several outputs."""
    troubles: dict[str, dict[str, None]] = {}
    for one in found:
        troubles.setdefault(one.name, {}).update(dict.fromkeys(one.troubles))
    for name, own in troubles.items():
        for text in own:
            slowed = text.startswith("is slowed down")
            yield Remark(Mark.BAD, "gpu", name, text, _GPU_SLOW if slowed else _GPU_RESET)
    if troubles and not any(troubles.values()):
        yield Remark(Mark.OK, "gpu", "", f"{len(troubles)} GPUs, none with trouble in this output")


def settings(found: Sequence[Setting]) -> Iterator[Remark]:
    """Settings of the kernel that slow RDMA down or lose its packets."""
    for one in found:
        right, why = _SETTINGS.get(one.name, (None, ""))
        if right is not None and one.value not in right:
            yield Remark(Mark.NOTE, "setting", one.name, f"is {one_line(one.value, _LONGEST)}: {why}")


def watchdogs(found: Sequence[Watchdog]) -> Iterator[Remark]:
    """Queues that the PFC watchdog holds, or had to drop from."""
    advice = "the device at this port sends pauses without end: check its NIC and its driver"
    for one in found:
        if one.detected > one.restored or one.status.lower().startswith("storm"):
            text = f"a pause storm is under way ({one.detected} detected, {one.restored} ended)"
            yield Remark(Mark.BAD, "pause storms", one.queue, text, advice)
        elif one.detected:
            yield Remark(Mark.NOTE, "pause storms", one.queue, f"{one.detected} pause storms, all ended", advice)


def ecn_profiles(found: Sequence[EcnProfile]) -> Iterator[Remark]:
    """Profiles of a switch that mark no packets."""
    for one in found:
        if one.ecn in {"", "ecn_none"}:
            yield Remark(Mark.NOTE, "ecn", one.name, "marks no packets", "set ecn to ecn_all for lossless queues")


def fabric_links(found: Sequence[FabricLink]) -> Iterator[Remark]:
    """Links that run slower than they could, or than their siblings: between switches, and of hosts."""
    for one in found:
        if one.could_be:
            text = f"runs at {one.speed}, and could be {one.could_be}"
            yield Remark(Mark.BAD, "slow link", " - ".join(one.ends), text, "check the cable and both ports")
    for between in (True, False):
        own = [one for one in found if one.between_switches is between and one.speed and not one.could_be]
        common = Counter(one.speed for one in own).most_common(1)
        for one in own:
            if one.speed != common[0][0] and common[0][1] * 2 > len(own):
                text = f"runs at {one.speed}, and {common[0][1]} others at {common[0][0]}"
                yield Remark(Mark.BAD, "slow link", " - ".join(one.ends), text, "check the cable and both ports")


def nearness(found: Sequence[Nearness]) -> Iterator[Remark]:
    """GPUs and the NICs next to them."""
    for one in found:
        if one.nics:
            yield Remark(Mark.OK, "nearness", one.gpu, f"shares a PCIe switch with {_some(one.nics)}")
        else:
            yield Remark(Mark.NOTE, "nearness", one.gpu, "shares no PCIe switch with a NIC")


def tool_advice(found: Sequence[Advice]) -> Iterator[Remark]:
    """What a tool says itself."""
    for one in found:
        text = f"{one.tool}: {one_line(one.text, _LONGEST)}"
        yield Remark(Mark.BAD if one.serious else Mark.NOTE, one.tool, one.where, text)


def ranges(numbers: Iterable[int]) -> str:
    """`0-3, 7` of sorted numbers."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)


def _numbers(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))


def _some(names: Iterable[str]) -> str:
    listed = [re.sub(r"\s+", " ", name) for name in names]
    more = f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
    return f"{', '.join(listed[:_SHOWN])}{more}"
