"""Which addresses are one switch's."""

from collections.abc import Collection, Mapping
from typing import NamedTuple


class Switch(NamedTuple):
    """The addresses that a switch answers by, and what is cabled to it."""

    addresses: frozenset[str]
    cabled: frozenset[str]


def switches(before: Mapping[str, Collection[str]]) -> list[Switch]:
    """The switches that ends of cables lead from, by the addresses that answered last `before` each: all of one."""
    found: list[Switch] = []
    for end, addresses in sorted(before.items()):
        joined = [switch for switch in found if not switch.addresses.isdisjoint(addresses)]
        merged = Switch(
            frozenset(addresses).union(*(switch.addresses for switch in joined)),
            frozenset({end}).union(*(switch.cabled for switch in joined)),
        )
        found = [*(switch for switch in found if switch not in joined), merged]
    return found
