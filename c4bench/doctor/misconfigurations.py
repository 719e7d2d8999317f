"""Settings of a fabric's switches and hosts that hurt RDMA: the one set of rules, for live and for saved ones. Pure.

What is right is found in the fabric itself: the inventory's DSCP, what most ports of a role or most devices have, the
other end of a cable; each remark says which of them. Where nothing decides, both are named.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Generic, NamedTuple, TypeVar

from c4bench.doctor.facts import Mark, Remark
from c4bench.doctor.rules import MTU_AT_LEAST, ranges
from c4bench.doctor.settings import Device, End, NicSettings, PortSettings
from c4bench.model.fabric import ECN_BITS, ECN_CAPABLE
from c4bench.model.fault import Misconfiguration
from c4bench.switches import systems
from c4bench.switches.facts import Ecn

Settings = PortSettings | NicSettings
V = TypeVar("V")
_FEW = 3  # fewer ports or devices decide nothing by their number
_SHOWN = 4
_PRIORITIES = 8
# What NVIDIA's and SONiC's guides give RoCE, for advice where nothing else is known.
_ROCE_DSCP, _ROCE_PRIORITY = 26, 3


class Place(NamedTuple):
    """A port of a switch or a NIC of a host; alike in `role` and in `rate_bps` are those that are meant to be alike."""

    device: str
    system: str
    settings: Settings
    role: str
    rate_bps: float = 0.0

    @property
    def end(self) -> End:
        """The device and its port."""
        return self.device, self.settings.name

    def __str__(self) -> str:
        """`leaf0 Ethernet4`."""
        return " ".join(self.end)


class Usual(NamedTuple, Generic[V]):
    """The right value, and why it is taken for right."""

    value: V
    why: str


class Judged(NamedTuple):
    """The remarks by device; and settings that differ where nothing says which is right."""

    remarks: Mapping[str, Sequence[Remark]]
    undecided: Sequence[str]


def judge(
    devices: Iterable[Device], dscps: Iterable[int] = (), priorities: Mapping[int, int] = MappingProxyType({})
) -> Judged:
    """Judge a whole fabric.

    `dscps` are those that the inventory states for data, and `priorities` the lossless priorities that it states, by
    DSCP; without them they are found out.
    """
    fabric = _Fabric(tuple(devices), frozenset(dscps) - {0}, priorities)
    remarks: dict[str, list[Remark]] = defaultdict(list)
    for place, remark in fabric.remarks():
        remarks[place.device].append(remark)
    for one in fabric.undecided:
        for device in one.devices if len(one.devices) == 1 else ():
            remarks[device].append(Remark(Mark.BAD, one.kind, "", one.text, "make them alike"))
    return Judged(remarks, tuple(one.text for one in fabric.undecided if len(one.devices) > 1))


class _Undecided(NamedTuple):
    """Settings of these devices that differ."""

    kind: Misconfiguration
    devices: frozenset[str]
    text: str


class Siblings(Generic[V]):
    """Values of ports, and what is usual among those of a port's role and rate, else of its rate, else among all."""

    def __init__(self, known: Sequence[tuple[Place, V]]) -> None:
        self.known = known
        self._usual = [(alike, noun, _most_by(known, alike)) for alike, noun in _LIKENESS]

    def usual(self, place: Place) -> Usual[V] | None:
        """The value that the port should have, None where more than half have none in common."""
        for alike, noun, by_key in self._usual:
            found = by_key.get(alike(place))
            if found is not None:
                return Usual(found.value, f"{found.why} {noun or place.role}")
        return None

    def odd(self) -> Iterator[tuple[Place, V, Usual[V]]]:
        """The ports that have another value than is usual."""
        for place, value in self.known:
            usual = self.usual(place)
            if usual is not None and value != usual.value:
                yield place, value, usual


# How ports are alike, the likest first, and what they are called; "" is their role.
_LIKENESS: tuple[tuple[Callable[[Place], Hashable], str], ...] = (
    (lambda one: (one.role, one.rate_bps), ""),
    (lambda one: one.rate_bps, "ports of its rate"),
    (lambda _: None, "ports"),
)


def _most_by(known: Iterable[tuple[Place, V]], alike: Callable[[Place], Hashable]) -> dict[Hashable, Usual[V]]:
    groups: dict[Hashable, list[V]] = defaultdict(list)
    for place, value in known:
        groups[alike(place)].append(value)
    return {key: usual for key, values in groups.items() if (usual := _most(values)) is not None}


_Found = Iterator[tuple[Place, Remark]]
_INVENTORY = "the facts of the inventory"


class _Fabric:
    """The ports of a fabric, and what is usual among them."""

    def __init__(self, devices: Sequence[Device], stated: frozenset[int], priorities: Mapping[int, int]) -> None:
        self._stated, self._priorities = stated, priorities
        self._links = {(one.name, port): far for one in devices for port, far in one.links.items()}
        switches = {one.name for one in devices if one.ports}
        self._ports = [
            Place(one.name, one.system, port, _role(switches, one.links.get(port.name)), port.rate_bps)
            for one in devices
            for port in one.ports
            if port.admin_up is not False and port.up is not False
        ]
        self._nics = [Place(one.name, "", nic, "NICs") for one in devices for nic in one.nics]
        self.undecided: dict[_Undecided, None] = {}

    def remarks(self) -> _Found:
        """Everything that is wrong."""
        yield from self._trust()
        yield from self._dscp_map()
        yield from self._traffic_class()
        yield from self._pfc()
        yield from self._ecn_off()
        yield from self._ecn_thresholds()
        yield from self._dcqcn()
        yield from self._watchdog()
        yield from self._mtu()
        yield from self._adaptive_routing()
        yield from self._gid()

    @property
    def _all(self) -> list[Place]:
        return [*self._nics, *self._ports]

    @cached_property
    def _data(self) -> Usual[frozenset[int]]:
        """The DSCPs of the data."""
        if self._stated:
            return Usual(self._stated, f"the inventory states DSCP {ranges(sorted(self._stated))}")
        sent = _most([nic.settings.dscp for nic in self._nics if isinstance(nic.settings, NicSettings)])
        if sent is not None and sent.value is not None:
            return Usual(frozenset({sent.value}), f"{sent.why} NICs send DSCP {sent.value}")
        by_kind = [self._lossless_dscps(kind) for kind in (self._nics, self._ports)]
        known = [dscps for dscps in by_kind if dscps is not None]
        both = frozenset.intersection(*known) if known else frozenset[int]()
        return Usual(both, f"DSCP {ranges(sorted(both))} is lossless on most ports" if both else "")

    @staticmethod
    def _lossless_dscps(places: Iterable[Place]) -> frozenset[int] | None:
        """The DSCPs that most of these ports queue without loss, None where no port states both."""
        known = [one.settings for one in places if one.settings.priorities and one.settings.pfc is not None]
        votes = Counter(
            dscp for one in known for dscp, number in enumerate(one.priorities) if number in (one.pfc or ())
        )
        return frozenset(dscp for dscp, count in votes.items() if 2 * count > len(known)) if known else None

    @cached_property
    def _priority_of(self) -> Mapping[int, Usual[int]]:
        """The priority that the inventory states, else most hosts and switches give, for each DSCP of the data."""
        found = {}
        for dscp in sorted(self._data.value):
            if dscp in self._priorities:
                found[dscp] = Usual(self._priorities[dscp], _INVENTORY)
                continue
            votes = self._votes(dscp)
            usual = _most(list(votes.values()), few=1)
            if usual is not None:
                found[dscp] = Usual(usual.value, f"{usual.why} hosts and switches")
            else:
                ends = [((device, ""), f"priority {number}") for device, number in votes.items()]
                self._differ(Misconfiguration.DSCP_MAP, f"the priority of DSCP {dscp}", ends)
        return found

    def _votes(self, dscp: int) -> dict[str, int]:
        """The priority of a DSCP on most ports of each device."""
        own: dict[str, Counter[int]] = defaultdict(Counter)
        for place in self._all:
            if place.settings.priorities:
                own[place.device][place.settings.priorities[dscp]] += 1
        return {device: counts.most_common(1)[0][0] for device, counts in own.items()}

    @cached_property
    def _lossless(self) -> Mapping[int, str]:
        """The priorities that must be lossless, and why."""
        found: dict[int, str] = {}
        for dscp, usual in self._priority_of.items():
            found.setdefault(usual.value, f"DSCP {dscp} has it {'by' if usual.why == _INVENTORY else 'on'} {usual.why}")
        if found or self._data.value:
            return found
        counts = Counter(number for one in self._all for number in one.settings.pfc or ())
        known = sum(one.settings.pfc is not None for one in self._all)
        return {number: f"{count} of {known} ports pause it" for number, count in counts.items() if 2 * count > known}

    def _trust(self) -> _Found:
        for nic in self._nics:
            if nic.settings.trust in {"pcp", "none"}:
                text = f"trusts {nic.settings.trust}, not DSCP: RoCE packets have no priority of their own"
                yield self._found(Misconfiguration.TRUST, nic, text)

    def _dscp_map(self) -> _Found:
        for port in self._ports:
            if port.settings.trust in {"pcp", "none"}:
                text = f"trusts {port.settings.trust}, so DSCP does not select a lossless queue"
                dscp, right = min(self._data.value, default=_ROCE_DSCP), min(self._lossless, default=_ROCE_PRIORITY)
                yield self._found(Misconfiguration.DSCP_MAP, port, text, dscp=dscp, priority=right)
        for place in self._all:
            wrong: dict[tuple[int, int], list[int]] = defaultdict(list)
            for dscp, usual in self._priority_of.items() if place.settings.priorities else ():
                number = place.settings.priorities[dscp]
                if number != usual.value:
                    wrong[number, usual.value].append(dscp)
            for (number, right), dscps in wrong.items():
                text = (
                    f"gives DSCP {ranges(dscps)} priority {number}, and {self._priority_of[dscps[0]].why} give {right}"
                )
                yield self._found(Misconfiguration.DSCP_MAP, place, text, dscp=dscps[0], priority=right)

    def _traffic_class(self) -> _Found:
        for nic in self._nics:
            dscp = nic.settings.dscp if isinstance(nic.settings, NicSettings) else None
            if dscp is not None and self._data.value and dscp not in self._data.value:
                right = min(self._data.value)
                text = f"makes all its packets DSCP {dscp}, and {self._data.why}"
                yield self._found(Misconfiguration.TRAFFIC_CLASS, nic, text, dscp=right)

    def _pfc(self) -> _Found:
        for place in self._all:
            own = place.settings.pfc
            if own is None:
                continue
            missing = [number for number in self._lossless if number not in own]
            for number in missing:
                text = f"PFC is off at priority {number}; {self._lossless[number]}"
                yield self._found(Misconfiguration.PFC_OFF, place, text, priority=number)
            if not own and not missing:
                text = "PFC is off at every priority: RoCE packets may be dropped in congestion"
                yield self._found(Misconfiguration.PFC_OFF, place, text, priority=_ROCE_PRIORITY)
        yield from self._other_pfc()

    def _other_pfc(self) -> _Found:
        """Switch ports that pause other priorities than their siblings, beside those that must be lossless."""
        paused = [(port, port.settings.pfc) for port in self._ports if port.settings.pfc]
        known = [(port, frozenset(own) - set(self._lossless)) for port, own in paused]
        usual = _most([other for _, other in known])
        if usual is None:
            ends = [(port.end, f"priority {_listed(own)}") for port, own in paused]
            self._differ(Misconfiguration.PFC_OFF, "which priority is lossless", ends)
            return
        for port, other in known:
            if other != usual.value:
                text = f"PFC is on at priority {_listed(port.settings.pfc or ())}, unlike on {usual.why} ports"
                yield port, Remark(Mark.NOTE, Misconfiguration.PFC_OFF, port.settings.name, text, "make them alike")

    def _ecn_off(self) -> _Found:
        known = [(port, marks) for port in self._ports if (marks := _marks(port)) is not None]
        marking = Counter((port.role, number) for port, marks in known for number in marks)
        for port, marks in known:
            for number in self._lossless or port.settings.pfc or ():
                if number not in marks:
                    others = marking[port.role, number]
                    text = f"priority {number} is lossless without ECN marking"
                    text += f"; {others} other {port.role} mark" if others else ""
                    yield self._found(Misconfiguration.ECN_OFF, port, text, priority=number)

    def _ecn_thresholds(self) -> _Found:
        for number in self._lossless or sorted({one for port in self._ports for one in port.settings.pfc or ()}):
            known = [(port, marks[number]) for port in self._ports if number in (marks := _marks(port) or {})]
            siblings = Siblings(known)
            if all(siblings.usual(port) is None for port, _ in known):
                ends = [(port.end, _thresholds(marking)) for port, marking in known]
                self._differ(Misconfiguration.ECN_THRESHOLDS, f"ECN marking of priority {number}", ends)
            for port, marking, usual in siblings.odd():
                text = f"marks priority {number} {_thresholds(marking)}, and {usual.why} {_thresholds(usual.value)}"
                yield self._found(Misconfiguration.ECN_THRESHOLDS, port, text, priority=number, **_numbers(usual.value))

    def _dcqcn(self) -> _Found:
        for nic in self._nics:
            own = nic.settings.dcqcn if isinstance(nic.settings, NicSettings) else None
            for number in self._lossless if own is not None else ():
                if number not in (own or ()):
                    text = f"congestion control (DCQCN) is off at priority {number}; {self._lossless[number]}"
                    yield self._found(Misconfiguration.DCQCN, nic, text, priority=number)

    def _watchdog(self) -> _Found:
        for port in self._ports:
            if isinstance(port.settings, PortSettings) and port.settings.watchdog is False and port.settings.pfc:
                text = "no PFC watchdog, so a pause storm could stop the fabric"
                yield self._found(Misconfiguration.WATCHDOG_OFF, port, text)

    def _mtu(self) -> _Found:
        reported: set[End] = set()
        for places in (self._ports, self._nics):
            known = [(one, one.settings.mtu_bytes) for one in places if one.settings.mtu_bytes]
            for place, own, usual in Siblings(known).odd():
                if own < usual.value:
                    reported.add(place.end)
                    text = f"has an MTU of {own}, and {usual.why} {usual.value}"
                    yield self._found(Misconfiguration.MTU, place, text, mtu=usual.value)
        yield from self._short_mtu(reported)
        yield from self._unlike_ends(reported)

    def _short_mtu(self, reported: set[End]) -> _Found:
        for place in self._all:
            if 0 < place.settings.mtu_bytes < MTU_AT_LEAST and place.end not in reported:
                reported.add(place.end)
                text = f"has an MTU of {place.settings.mtu_bytes}: RDMA packets of 4096 bytes do not fit"
                yield self._found(Misconfiguration.MTU, place, text, mtu=MTU_AT_LEAST)

    def _unlike_ends(self, reported: set[End]) -> _Found:
        """NICs that send packets which are too long for the other end of their cable, and ports between switches."""
        places = {one.end: one for one in self._all if one.settings.mtu_bytes}
        for end, far_end in self._links.items():
            near, far = places.get(end), places.get(far_end)
            if near is None or far is None or reported & {end, far_end}:
                continue
            own, other = near.settings.mtu_bytes, far.settings.mtu_bytes
            between_switches = near.role == far.role != "NICs"
            if own > other and isinstance(near.settings, NicSettings):
                text = f"has an MTU of {own}, more than the {other} of {far} at the other end of its cable"
                yield self._found(Misconfiguration.MTU, near, text, mtu=other)
            elif own < other and between_switches:
                text = f"has an MTU of {own}, less than the {other} of {far} at the other end of its cable"
                yield self._found(Misconfiguration.MTU, near, text, mtu=other)

    def _adaptive_routing(self) -> _Found:
        known = [(port, on) for port in self._ports if (on := _routing(port)) is not None]
        siblings = Siblings(known)
        for port, on in known:
            usual = siblings.usual(port)
            if on and usual is not None and usual.value:
                text = f"adaptive routing is on, as on {usual.why}: paths cannot be chosen"
                yield port, Remark(Mark.NOTE, Misconfiguration.ADAPTIVE_ROUTING, port.settings.name, text)
            elif on:
                text = f"adaptive routing is on{f', and off on {usual.why}' if usual else ''}: paths cannot be chosen"
                yield self._found(Misconfiguration.ADAPTIVE_ROUTING, port, text)

    def _gid(self) -> _Found:
        known = [
            (nic, nic.settings.gids)
            for nic in self._nics
            if isinstance(nic.settings, NicSettings) and nic.settings.gids is not None
        ]
        usual = _most([gids for _, gids in known if gids], few=1)
        right = f"GID index {_listed(usual.value or ())}" if usual else ""
        for nic, gids in known:
            if not gids:
                text = f"has no IPv4 address, so no {right}: a job with that index fails here"
                text = text if usual else "has no GID of RoCE v2 over IPv4"
                yield self._found(Misconfiguration.GID, nic, text)
            elif usual is not None and gids != usual.value:
                text = f"has RoCE v2 over IPv4 at GID index {_listed(gids)}, and {usual.why} NICs have {right}"
                yield self._found(Misconfiguration.GID, nic, text)

    def _differ(self, kind: Misconfiguration, what: str, known: Iterable[tuple[End, object]]) -> None:
        """Note that `what` differs, and nothing says which of the values, each of the end of a cable, is right."""
        users: dict[object, list[End]] = defaultdict(list)
        for end, value in known:
            users[value].append(end)
        if len(users) > 1:
            listed = "; ".join(
                f"{value} on {_some([' '.join(end).strip() for end in ends])}" for value, ends in users.items()
            )
            text = f"{what} differs, and nothing says which is right: {listed}"
            devices = frozenset(device for ends in users.values() for device, _ in ends)
            self.undecided[_Undecided(kind, devices, text)] = None

    def _found(self, kind: Misconfiguration, place: Place, text: str, **values: object) -> tuple[Place, Remark]:
        return place, Remark(Mark.BAD, kind, place.settings.name, text, _advice(kind, place, values))


def _role(switches: Iterable[str], far: End | None) -> str:
    if far is None:
        return "ports"
    return "ports between switches" if far[0] in switches else "ports to hosts"


def _most(values: Sequence[V], few: int = _FEW) -> Usual[V] | None:
    """The value of more than half of `few` or more, None for none."""
    for value, count in Counter(values).most_common(1):
        if len(values) >= few and 2 * count > len(values):
            return Usual(value, f"{count} of {len(values)}")
    return None


def _marks(port: Place) -> Mapping[int, Ecn] | None:
    return port.settings.marks if isinstance(port.settings, PortSettings) else None


def _routing(port: Place) -> bool | None:
    return port.settings.adaptive_routing if isinstance(port.settings, PortSettings) else None


def _thresholds(marking: Ecn) -> str:
    return f"from {marking.min_bytes} to {marking.max_bytes} bytes ({marking.percent:g} %)"


def _numbers(marking: Ecn) -> dict[str, object]:
    return {"low": f"{marking.min_bytes}", "high": f"{marking.max_bytes}", "percent": f"{marking.percent:g}"}


def _listed(numbers: Iterable[int]) -> str:
    return ",".join(map(str, numbers))


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(names[:_SHOWN])}{more}"


# By rule, the command on the host.
_ON_HOSTS = {
    Misconfiguration.PFC_OFF: "mlnx_qos -i {port} --pfc {bits}",
    Misconfiguration.TRUST: "mlnx_qos -i {port} --trust dscp",
    Misconfiguration.DSCP_MAP: "mlnx_qos -i {port} --dscp2prio set,{dscp},{priority}",
    Misconfiguration.TRAFFIC_CLASS: "echo {traffic_class} > /sys/class/infiniband/{device}/tc/1/traffic_class",
    Misconfiguration.DCQCN: "for e in np rp; do echo 1 > /sys/class/net/{port}/ecn/roce_$e/enable/{priority}; done",
    Misconfiguration.MTU: "ip link set {port} mtu {mtu}",
    Misconfiguration.GID: "give the interface of {port} an address alike its siblings', or leave it out (NCCL_IB_HCA)",
}


def _advice(kind: Misconfiguration, place: Place, values: Mapping[str, object]) -> str:
    """The command that corrects it, as far as the system is known."""
    named = {"port": place.settings.name, **values}
    if isinstance(place.settings, PortSettings):
        return systems.fix(place.system, kind, named)
    bits = _listed(int(number == values.get("priority")) for number in range(_PRIORITIES))
    dscp = values.get("dscp")
    traffic_class = dscp << ECN_BITS | ECN_CAPABLE if isinstance(dscp, int) else ""
    named |= {"bits": bits, "traffic_class": traffic_class, "device": place.settings.device or place.settings.name}
    return _ON_HOSTS[kind].format(**named)
