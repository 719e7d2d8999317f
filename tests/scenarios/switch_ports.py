"""The switches' ports by what they lead to."""

from typing import NamedTuple


class Ports(NamedTuple):
    """The switches' ports between switches, towards hosts, and in ECMP groups.

    `addresses` are those at both ends of each port, and each switch's own; `leading` is the port that sends to an
    address; `nics` are those of each host.
    """

    across: list[str]
    towards: list[str]
    shared: list[str]
    addresses: dict[str, frozenset[str]]
    leading: dict[str, str]
    nics: dict[str, list[str]]
