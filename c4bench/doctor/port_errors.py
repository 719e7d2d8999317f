"""What error and drop counters of switch ports say.

Only errors that grow between two readings speak against a cable, an optic, or the sender at the other end: a counter
that stands may be of last year. Drops are packets that arrived whole and were discarded, by an ACL, for an unknown
VLAN, or in congestion: no cable does that.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from c4bench.decoding import from_json
from c4bench.foreign_text import one_line

# By port and by the name of the counter, as SONiC's `portstat -j` calls them.
Counts = Mapping[str, Mapping[str, int]]
ERRORS = ("RX_ERR", "TX_ERR")
DROPS = ("RX_DRP", "TX_DRP")
_MOST_DIGITS = 20
_LONGEST_NAME = 80


class _OneWay(msgspec.Struct, frozen=True):
    errors: int = 0


class _Statistics(msgspec.Struct, frozen=True):
    rx: _OneWay = _OneWay()
    tx: _OneWay = _OneWay()


class _Link(msgspec.Struct, frozen=True):
    ifname: str = ""
    stats64: _Statistics = _Statistics()


def of_portstat(printed: Mapping[str, Any]) -> Counts:
    """The counters in SONiC's `portstat -j`; those that a platform does not have (`N/A`) are left out."""
    found: dict[str, dict[str, int]] = {}
    for port, row in printed.items():
        values = row if isinstance(row, dict) else {}
        counts = {name: _number(values.get(name)) for name in (*ERRORS, *DROPS)}
        found[port] = {name: count for name, count in counts.items() if count is not None}
    return found


def of_links(printed: bytes) -> Counts:
    """The counters in `ip -s -j link`, whose drops are not those of a switch's ports. Raises DecodingError."""
    links = from_json(printed, tuple[_Link, ...])
    return {link.ifname: {"RX_ERR": link.stats64.rx.errors, "TX_ERR": link.stats64.tx.errors} for link in links}


def any_errors(counts: Counts) -> bool:
    """Whether a second reading could show that errors grow."""
    return any(row.get(name) for row in counts.values() for name in ERRORS)


def growing(before: Counts, after: Counts) -> Iterator[str]:
    """A line for each port whose errors have grown from one reading to the next."""
    for port, now in sorted(after.items()):
        then = before.get(port, {})
        risen = [name for name in ERRORS if name in then and now.get(name, 0) > then[name]]
        grown = [f"{name} {then[name]} to {now[name]}" for name in risen]
        if grown:
            what = "the cable, the optics, and the port at its other end"
            yield f"{_name(port)}: errors grow, {', '.join(grown)}; check {what}"


def standing(before: Counts, after: Counts) -> Iterator[str]:
    """A line for each port with errors that do not grow, or with drops: neither speaks against its cable."""
    for port, now in sorted(after.items()):
        then = before.get(port, {})
        still = [f"{name} {now[name]}" for name in ERRORS if now.get(name) and then.get(name) == now[name]]
        if still:
            yield f"{_name(port)}: {', '.join(still)} in all, not growing: no reason to touch the cable"
        dropped = [f"{name} {now[name]}" for name in DROPS if now.get(name)]
        if dropped:
            yield f"{_name(port)}: {', '.join(dropped)}: discarded by a rule, a VLAN or congestion, not by the cable"


def _number(written: object) -> int | None:
    """A counter as it is printed, with commas between thousands; None for what is no number."""
    digits = str(written).replace(",", "")
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= _MOST_DIGITS else None


def _name(port: str) -> str:
    return one_line(port, _LONGEST_NAME)
