"""What one agent ships for one interval, as tables of numbers: a row for each operation and end of a connection.

A row is one of the records of `model.telemetry`, but its times are whole ns and its text is numbers: `HostNames` says
what they stand for, and an agent gives them by `Numbering`. Tables are bytes, so that an agent makes them, and a master
passes them on, without an object for each row. `Window.ops` and the like make records of them.
"""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from struct import Struct
from typing import Generic, NamedTuple, TypeVar

import msgspec

from c4bench.errors import UsageError
from c4bench.model.telemetry import ArrivalRecord, CommRecord, ConnRecord, NicRecord, OpRecord, RankRecord

_Name = TypeVar("_Name", bound=Hashable)

STATES = ("idle", "credit", "data", "transfer")
# Caller, call; sequence number, bytes; entered, started, finished (ns); bytes of awaited ranks.
OP = Struct("<2I5qQ")
# Sending end, messages, bytes; ns in credit, data and transfer up to `since`, the share of the NIC's time, last
# progress; outstanding, owed, source port, state; since (ns); posted messages, and the sum of their times (ns).
CONN = Struct("<Q7q4Iq2Q")
# Receiving end, messages; arrived messages, and the sum of their times (ns).
ARRIVAL = Struct("<Qq2Q")


class EndName(NamedTuple):
    """The constant fields of an end of a connection: those that `ConnRecord` and `ArrivalRecord` begin with."""

    comm: str
    rank: int
    peer: int
    source: str
    destination: str
    qp: int


class Caller(NamedTuple):
    """A rank of a communicator."""

    comm: str
    rank: int


class CallName(NamedTuple):
    """What a rank called: the constant fields of an `OpRecord`."""

    kind: str
    algorithm: str
    dtype: str


class HostNames(msgspec.Struct, frozen=True):
    """What numbers in a host's tables stand for: each is an index here. None is a number that is free.

    `comms` are the communicators that ranks of the host are in; `sends` and `receives` the ends of connections.
    """

    comms: tuple[CommRecord | None, ...] = ()
    callers: tuple[Caller | None, ...] = ()
    sends: tuple[EndName | None, ...] = ()
    receives: tuple[EndName | None, ...] = ()
    calls: tuple[CallName | None, ...] = ()


class Window(msgspec.Struct, frozen=True):
    """Covers `start_s` to `end_s` on its host's clock; `sequence` counts the agent's windows.

    The tables have rows of `OP`, `CONN` and `ARRIVAL`. `awaits` has the ranks that operations await, a bit each, of one
    operation after the other. Sums of times are 0 where no message has come since the last window.
    """

    host: str
    sequence: int
    start_s: float
    end_s: float
    names: HostNames
    ranks: tuple[RankRecord, ...] = ()
    op_table: bytes = b""
    awaits: bytes = b""
    conn_table: bytes = b""
    arrival_table: bytes = b""
    nics: tuple[NicRecord, ...] = ()

    @property
    def comms(self) -> tuple[CommRecord, ...]:
        """The communicators that ranks of the host are in."""
        return tuple([record for record in self.names.comms if record is not None])

    @property
    def ops(self) -> tuple[OpRecord, ...]:
        """The operations. A row whose number stands for nothing is left out."""
        return tuple(op_records(self.names, self.op_table, self.awaits))

    @property
    def conns(self) -> tuple[ConnRecord, ...]:
        """The sending ends of connections, as they are when the window ends."""
        return tuple(conn_records(self.names, self.conn_table, self.end_s))

    @property
    def arrivals(self) -> tuple[ArrivalRecord, ...]:
        """The receiving ends of connections."""
        return tuple(arrival_records(self.names, self.arrival_table))


def op_records(names: HostNames, table: bytes, awaits: bytes) -> Iterator[OpRecord]:
    """The records of a table of operations."""
    at = 0
    for number, call_number, seq, size_bytes, entered, started, finished, length in OP.iter_unpack(table):
        caller, call = _name(names.callers, number), _name(names.calls, call_number)
        times_s = entered / 1e9, started / 1e9, finished / 1e9
        if caller is not None and call is not None:
            yield OpRecord(*caller, seq, *call, size_bytes, *times_s, ranks_in(awaits[at : at + length]))
        at += length


def conn_records(names: HostNames, table: bytes, end_s: float | None) -> Iterator[ConnRecord]:
    """The records of a table of sending ends; what their states have lasted by `end_s` is added, if it is given."""
    end_ns = None if end_s is None else round(end_s * 1e9)
    for row in CONN.iter_unpack(table):
        end, messages, size, credit, data, transfer, shared, progress, outstanding, owed, port, state, since = row[:13]
        name, spent = _name(names.sends, end), [credit, data, transfer]
        if name is None or state >= len(STATES):
            continue
        if state and end_ns is not None and end_ns > since:
            spent[state - 1] += end_ns - since
        credit_s, data_s, transfer_s, shared_s, progress_s = (ns / 1e9 for ns in (*spent, shared, progress))
        since_s, (posted, sum_ns) = since / 1e9, row[13:]
        spent_s = credit_s, data_s, transfer_s, shared_s
        sent = port, messages, size
        yield ConnRecord(*name, *sent, *spent_s, progress_s, outstanding, owed, STATES[state], since_s, posted, sum_ns)


def arrival_records(names: HostNames, table: bytes) -> Iterator[ArrivalRecord]:
    """The records of a table of receiving ends."""
    for number, messages, arrived, sum_ns in ARRIVAL.iter_unpack(table):
        name = _name(names.receives, number)
        if name is not None:
            yield ArrivalRecord(*name, messages, arrived, sum_ns)


def _name(names: Sequence[_Name | None], number: int) -> _Name | None:
    return names[number] if number < len(names) else None


def ranks_in(bits: bytes) -> tuple[int, ...]:
    """The ranks whose bits are set."""
    some = ((8 * at, byte) for at, byte in enumerate(bits) if byte)
    return tuple(first + bit for first, byte in some for bit in range(8) if byte >> bit & 1)


# More of each sort than a host has: 16 ranks with full telemetry files have a quarter of it.
NUMBERS_AT_MOST = 1 << 16


class Numbers(Generic[_Name]):
    """Names of one sort; a number is given again once its name is gone."""

    def __init__(self) -> None:
        self._numbers: dict[_Name, int] = {}
        self._names: list[_Name | None] = []
        self._free: list[int] = []
        self._listed: tuple[_Name | None, ...] | None = ()

    def number(self, name: _Name, at_most: int = NUMBERS_AT_MOST) -> int:
        """The number of a name, which may be new. Raises UsageError where there are `at_most` already."""
        number = self._numbers.get(name)
        if number is None:
            if len(self._numbers) >= at_most:
                raise UsageError(f"this host's ranks have over {at_most} connections or kinds of operations; use fewer")
            if not self._free:
                self._free.append(len(self._names))
                self._names.append(None)
            number = self._numbers[name] = self._free.pop()
            self._names[number], self._listed = name, None
        return number

    def keep(self, names: Iterable[_Name]) -> None:
        """Free the numbers of all other names."""
        kept = set(names)
        for name in [name for name in self._numbers if name not in kept]:
            number = self._numbers.pop(name)
            self._names[number], self._listed = None, None
            self._free.append(number)

    @property
    def listed(self) -> tuple[_Name | None, ...]:
        """The names by number; the same object until one changes."""
        if self._listed is None:
            self._listed = tuple(self._names)
        return self._listed


class Numbering:
    """The numbers that a host's tables use; `names` says what they stand for."""

    def __init__(self) -> None:
        self.comms: Numbers[CommRecord] = Numbers()
        self.callers: Numbers[Caller] = Numbers()
        self.sends: Numbers[EndName] = Numbers()
        self.receives: Numbers[EndName] = Numbers()
        self.calls: Numbers[CallName] = Numbers()
        self._names = HostNames()

    @property
    def names(self) -> HostNames:
        """What the numbers stand for; the same object until that changes."""
        listed = (
            self.comms.listed,
            self.callers.listed,
            self.sends.listed,
            self.receives.listed,
            self.calls.listed,
        )
        known = (getattr(self._names, sort) for sort in self._names.__struct_fields__)
        if any(new is not old for new, old in zip(listed, known, strict=True)):
            self._names = HostNames(*listed)
        return self._names
