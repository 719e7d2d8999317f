"""Packet counters of a SONiC switch's ports, from its counters database.

The kernel of a SONiC switch counts only packets that go to its processor. What ports forward is in COUNTERS_DB, which
the switch refreshes every second unless set otherwise. Written from SONiC's documented tables (`sonic-db-dump`, SAI's
port counters); never run on hardware.
"""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from c4bench.budget import SWITCH, Account, OverBudgetError
from c4bench.decoding import DecodingError, json_in, whole_number
from c4bench.errors import UnhealthyError

_DUMP = ("sonic-db-dump", "-n", "COUNTERS_DB", "-k")
NAMES = (*_DUMP, "COUNTERS_PORT_NAME_MAP")
# Object identifiers of ports begin so; those of queues and buffers, which are many more, do not.
COUNTERS = (*_DUMP, "COUNTERS:oid:0x1000*")
PRESENT = f"command -v {_DUMP[0]}"
_RECEIVED, _SENT = "SAI_PORT_STAT_IF_IN_OCTETS", "SAI_PORT_STAT_IF_OUT_OCTETS"
_PACKETS = ("SAI_PORT_STAT_IF_IN_UCAST_PKTS", "SAI_PORT_STAT_IF_IN_NON_UCAST_PKTS")
_TABLE = "COUNTERS_PORT_NAME_MAP"


class _Entry(msgspec.Struct, frozen=True):
    value: dict[str, str] = {}


class PortCounters(msgspec.Struct, frozen=True):
    """What a port has received, in bytes and packets, and sent, in bytes."""

    received_bytes: int
    received_packets: int
    sent_bytes: int


def read(switch: str, output: Callable[[Sequence[str]], bytes]) -> dict[str, PortCounters]:
    """The counters by port of a SONiC switch; `output` runs a command there. Raises UnhealthyError."""
    return port_counters(switch, output(NAMES), output(COUNTERS))


def port_counters(switch: str, names: bytes, counters: bytes) -> dict[str, PortCounters]:
    """The counters by port, from the output of `NAMES` and `COUNTERS`; a port without counters is left out.

    Raises UnhealthyError if the output is of another form.
    """
    ports, rows = _decode(switch, names), _decode(switch, counters)
    found = {port: rows.get(f"COUNTERS:{oid}") for port, oid in ports.get(_TABLE, _Entry()).value.items()}
    try:
        return {port: _counted(row.value) for port, row in found.items() if row is not None and _RECEIVED in row.value}
    except DecodingError as error:
        raise UnhealthyError(f"{switch}: {_DUMP[0]} printed a counter that is none: {error}") from None


def _decode(switch: str, output: bytes) -> dict[str, _Entry]:
    try:
        Account(switch, SWITCH).spend(bytes=len(output))
        return json_in(output, dict[str, _Entry])
    except (DecodingError, OverBudgetError):
        raise UnhealthyError(
            f"{switch}: {_DUMP[0]} printed no counters: {output[:80]!r}; is this version of SONiC supported?"
        ) from None


def _counted(row: Mapping[str, str]) -> PortCounters:
    packets = sum(_number(row, name) for name in _PACKETS)
    return PortCounters(_number(row, _RECEIVED), packets, _number(row, _SENT))


def _number(row: Mapping[str, str], name: str) -> int:
    """A counter; 0 for one that the platform does not have (`N/A`). Raises DecodingError."""
    text = row.get(name, "")
    return whole_number(text) if text.isdecimal() else 0
