"""What is a right answer about an injected fault: its component, and those that no measurement could tell from it."""

from collections.abc import Collection, Mapping, Sequence
from enum import Enum

from c4bench.model.diagnosis import Component, Syndrome
from tools.campaign.measurable import Elements, Measurable
from tools.campaign.trial_record import NOTHING, TrialRecord


class _Shows(Enum):
    """How a fault shows: in itself, in transfers, or also in packets that expire on the way."""

    ITSELF = 1
    TRANSFERS = 2
    HOPS = 3


_SLOW = (Syndrome.COMMUNICATION_SLOW, Syndrome.NON_COMMUNICATION_SLOW)
# The host's agent is silent as well, which no other component explains.
_ABSENT = {"host.crash", "host.reboot"}
# Packets that expire pass a link that loses acknowledgements only, and are not led to one that is routed around.
_TRANSFERS_ONLY = {"link.acks_lost", "link.down", "switch.down"}
# Faults without a parameter `direction` that act on what leaves by the port.
_LEAVING = {"link.acks_lost", "link.ecmp_member", "switch.misrouted"}
_DIRECTIONS = {"tx", "rx"}


def same(found: Component, target: Component, addresses: Collection[str], nics: Mapping[str, Sequence[str]]) -> bool:
    """Whether a component is the target: a link goes by the address at either end, a NIC may come without its side.

    A switch may be named by any of its `addresses`. One that sends everything out of one port can only be seen as that
    port's link, and a host whose data network is cut only as all of its `nics`.
    """
    if found.kind == "link" and target.kind in {"link", "switch"} and "/" in target.name:
        return found.name in addresses
    if found.kind == "switch":
        return target.kind == "switch" and found.name in addresses
    if found.kind == "nic" and target.kind == "host":
        return tuple(nics.get(target.name, ())) == (found.name,) and not found.side
    sides = found.side == target.side or not (found.side and target.side)
    return (found.kind, found.name) == (target.kind, target.name) and sides


class Truth:
    """The right answers about one fault of a trial on a fabric."""

    def __init__(self, trial: TrialRecord, fabric: Measurable) -> None:
        self._trial, self._fabric = trial, fabric
        self._shows = _shows(trial)
        self._target = self._elements_of_target()
        self._met = self._measured(self._target)

    def same(self, found: Component) -> bool:
        """Whether a component is the target, as `same` has it."""
        return same(found, self._trial.target, self._trial.addresses, self._fabric.nics)

    def concerned(self, found: Component) -> bool:
        """Whether a component is part of the target, contains it, or is at its end: not a healthy one."""
        target = self._trial.target
        ends = {target.name.partition("/")[0], *target.name.split(">")}
        near = set(found.name.split(">")) | {part.partition("/")[0] for part in found.name.split(">")}
        return self.same(found) or (bool(ends & near) and target.kind in {"host", "nic"})

    def equivalent(self, found: Component) -> bool:
        """Whether no measurement tells a component from the target, or it is the part of it that was to be named.

        The side of a slow NIC belongs to the answer; one of two slow sides is a true answer, and so is each NIC of a
        host whose data network is cut.
        """
        target = self._trial.target
        if self._shows is _Shows.ITSELF or found.kind not in {"nic", "link", "switch", "path", "host"}:
            return found == target
        if self._trial.fault == "switch.misrouted" and found.kind == "switch":
            return self._fabric.switch_at(found.name) == _owner(target.name)
        choices = self._elements(found)
        if target.kind in {"nic", "host"} and any(choice and choice <= self._target for choice in choices):
            return True
        return any(self._measured(choice) == self._met for choice in choices)

    def _measured(self, elements: Elements) -> object:
        hops = self._shows is _Shows.HOPS
        return self._fabric.first_met(elements) if hops else self._fabric.met(elements)

    def _elements_of_target(self) -> Elements:
        target, trial = self._trial.target, self._trial
        if target.kind == "switch" and "/" not in target.name:
            return self._fabric.switch(target.name)
        if target.kind not in {"link", "switch"}:
            return max(self._elements(target), key=len, default=frozenset())
        leaving = self._fabric.leaving(_owner(target.name), trial.addresses)
        both = frozenset(element for address in trial.addresses for element in self._fabric.cable(address))
        direction = trial.parameters.get("direction", "tx" if trial.fault in _LEAVING else "both")
        return {"tx": leaving, "rx": both - leaving}.get(str(direction), both)

    def _elements(self, found: Component) -> tuple[Elements, ...]:
        """What a component may take with it: of a link, either direction or both."""
        match found.kind:
            case "nic":
                return (_sides(found),)
            case "host":
                return (frozenset().union(*(_both_sides(nic) for nic in self._fabric.nics.get(found.name, ()))),)
            case "link":
                cable = self._fabric.cable(found.name)
                return (cable, *(frozenset({element}) for element in cable))
            case "switch":
                return (self._fabric.switch(self._fabric.switch_at(found.name)),)
            case "path":
                return (frozenset({f"pair:{found.name}"}),)
            case _:
                return ()


def _shows(trial: TrialRecord) -> _Shows:
    if trial.target.kind in {"rank", "job"} or trial.target == NOTHING or trial.fault in _ABSENT:
        return _Shows.ITSELF
    if trial.expected in _SLOW or trial.fault in _TRANSFERS_ONLY:
        return _Shows.TRANSFERS
    return _Shows.HOPS


def _sides(nic: Component) -> Elements:
    return frozenset({f"{nic.side}:{nic.name}"}) if nic.side in _DIRECTIONS else _both_sides(nic.name)


def _both_sides(nic: str) -> Elements:
    return frozenset({f"tx:{nic}", f"rx:{nic}"})


def _owner(port: str) -> str:
    """The switch of a port."""
    return port.partition("/")[0]
