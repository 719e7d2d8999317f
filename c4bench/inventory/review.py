"""Contradictions in an inventory, and what it leaves out. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Iterator

import msgspec

from c4bench.inventory.facts import HostFacts, NicFacts
from c4bench.inventory.inventory import Inventory
from c4bench.model.fabric import Host


class Review(msgspec.Struct, frozen=True):
    """`problems` must be corrected; `unsaid` has by host the keys that the inventory leaves out.

    `cables` are those that are stated, of NICs and between switches.
    """

    hosts: int
    switches: int
    nics: int
    disruptive: tuple[str, ...]
    problems: tuple[str, ...]
    unsaid: dict[str, tuple[str, ...]]
    cables: int = 0


def review(inventory: Inventory) -> Review:
    """Check all hosts against each other; `load` has checked each by itself."""
    facts = {host.name: inventory.facts[host.name] for host in inventory.hosts}
    unsaid = {name: tuple(_unsaid(known)) for name, known in facts.items()}
    return Review(
        hosts=len(inventory.hosts),
        switches=len(inventory.switches),
        nics=sum(len(host.nics) for host in inventory.hosts),
        disruptive=tuple(host.name for host in inventory.hosts if host.disruptive),
        problems=(
            *inventory.replaced,
            *_shared(facts),
            *_carrying_us(facts),
            *_unknown_gpu_nics(facts),
            *_unlike(inventory.hosts),
        ),
        unsaid={name: left for name, left in unsaid.items() if left},
        cables=len(inventory.graph.cables) if inventory.graph else 0,
    )


def _unsaid(known: HostFacts) -> Iterator[str]:
    if not known.nics:
        yield "nics"
    for position, nic in enumerate(known.nics):
        yield from (f"nics[{position}].{key}" for key in _nic_keys(nic))
    if not known.management:
        yield "management"


def _nic_keys(nic: NicFacts) -> list[str]:
    return [key for key in ("device", "netdev", "address", "rate") if not getattr(nic, key)]


def _shared(facts: dict[str, HostFacts]) -> Iterator[str]:
    """Addresses and switch ports that several NICs share."""
    for key, what in (("address", "address"), ("leaf", "switch port")):
        users: dict[str, list[str]] = defaultdict(list)
        for host, known in facts.items():
            for position, nic in enumerate(known.nics):
                users[getattr(nic, key)].append(f"{host} nics[{position}]")
        users.pop("", None)
        yield from (f"{what} {value} is given to {_listed(of)}; give it to one only" for value, of in _twice(users))


def _carrying_us(facts: dict[str, HostFacts]) -> Iterator[str]:
    for host, known in facts.items():
        if known.management and known.management in {nic.netdev for nic in known.nics}:
            yield f"{host}: {known.management} is both its management interface and a NIC; remove it from c4.nics"


def _unknown_gpu_nics(facts: dict[str, HostFacts]) -> Iterator[str]:
    for host, known in facts.items():
        indices = {position if nic.index is None else nic.index for position, nic in enumerate(known.nics)}
        for position, gpu in enumerate(known.gpus):
            if gpu.nic is not None and gpu.nic not in indices:
                yield f"{host}: gpus[{position}].nic is {gpu.nic}, and it has no NIC of that index; correct c4.gpus"


def _unlike(hosts: Iterable[Host]) -> Iterator[str]:
    """Planes whose NICs send in different classes: a connection's two directions would be queued apart."""
    planes: dict[int, dict[tuple[int, int], str]] = defaultdict(dict)
    for nic in (nic for host in hosts for nic in host.nics):
        planes[nic.plane].setdefault((nic.dscp, nic.service_level), nic.name)
    for plane, classes in sorted(planes.items()):
        if len(classes) > 1:
            first, second = (f"{dscp} and {level} on {name}" for (dscp, level), name in list(classes.items())[:2])
            yield f"NICs of plane {plane} differ in `dscp` and `service_level`: {first}, {second}; give them the same"


def _twice(users: dict[str, list[str]]) -> Iterable[tuple[str, list[str]]]:
    return ((value, of) for value, of in sorted(users.items()) if len(of) > 1)


def _listed(names: list[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"
