"""Cables as topology files and inventories write them: `{between: [leaf0, spine0], rate: 100gbit, count: 2}`."""

from collections.abc import Collection, Sequence

import msgspec

from c4bench import units
from c4bench.errors import UsageError
from c4bench.inventory.document import Keys, dotted
from c4bench.model.graph import HostPort, Trunk

_AT_ONCE = 64


class GraphError(UsageError):
    """A graph that no fabric can be: the `problem`, and the `keys` of the value that has it."""

    def __init__(self, keys: Keys, problem: str) -> None:
        super().__init__(f"{dotted(keys)}: {problem}")
        self.keys, self.problem = tuple(keys), problem


class Cable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`count` cables `between` two switches, or a host and a switch, each with a NIC of its own (in that `plane`).

    An end may state its port: `leaf0/Ethernet4` of a switch, `gpu1/0` for a host's NIC by its index. A host's cables
    with the same `bond` are the ports of one NIC.
    """

    between: tuple[str, str]
    rate: str
    delay: str = "0s"
    count: int = 1
    plane: int = 0
    bond: str = ""


def expand(cables: Sequence[Cable], hosts: Collection[str]) -> tuple[tuple[HostPort, ...], tuple[Trunk, ...]]:
    """The cables one by one. Raises GraphError that names the key and the reason."""
    ports: list[HostPort] = []
    trunks: list[Trunk] = []
    for position, cable in enumerate(cables):
        if not 1 <= cable.count <= _AT_ONCE:
            raise GraphError(_keys(position, "count"), f"{cable.count} cables; give 1 to {_AT_ONCE}")
        if cable.count > 1 and any("/" in end for end in cable.between):
            raise GraphError(_keys(position, "count"), f"{cable.count} cables at one port; give each its own entry")
        known = _known(hosts, cable.between)
        if cable.bond and not known:
            problem = "a link between switches; only a host's links are ports of a bond"
            raise GraphError(_keys(position, "bond"), problem)
        for _ in range(cable.count):
            if known:
                ports.append(_host_port(position, cable, known))
            else:
                trunks.append(_trunk(position, cable))
    return tuple(ports), tuple(trunks)


def rate_of(keys: Keys, text: str) -> float:
    """A rate in bit/s. Raises GraphError."""
    try:
        return units.parse_rate(text)
    except UsageError as error:
        raise GraphError(keys, str(error)) from None


def delay_of(keys: Keys, text: str) -> float:
    """A time in s. Raises GraphError."""
    try:
        return units.parse_time(text)
    except UsageError as error:
        raise GraphError(keys, str(error)) from None


def _keys(position: int, key: str) -> Keys:
    return "links", position, key


def _known(hosts: Collection[str], ends: tuple[str, str]) -> tuple[str, str] | None:
    """The ends with the host first, None if neither is a host."""
    for host, switch in (ends, ends[::-1]):
        if host.partition("/")[0] in hosts:
            return host, switch
    return None


def _host_port(position: int, cable: Cable, ends: tuple[str, str]) -> HostPort:
    host, _, nic = ends[0].partition("/")
    switch, _, port = ends[1].partition("/")
    if nic and not nic.isdecimal():
        raise GraphError(_keys(position, "between"), f"{ends[0]!r} is no NIC; write a host and the NIC's index")
    rate_bps = rate_of(_keys(position, "rate"), cable.rate)
    delay_s = delay_of(_keys(position, "delay"), cable.delay)
    return HostPort(host, switch, rate_bps, delay_s, cable.plane, int(nic or -1), port, position, cable.bond)


def _trunk(position: int, cable: Cable) -> Trunk:
    (a, _, a_port), (b, _, b_port) = (end.partition("/") for end in cable.between)
    rate_bps = rate_of(_keys(position, "rate"), cable.rate)
    return Trunk(a, b, rate_bps, delay_of(_keys(position, "delay"), cable.delay), a_port, b_port, position)
