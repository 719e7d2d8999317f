"""Numbers for the names of a host, and windows of records that are given one by one."""

from collections.abc import Collection, Hashable, Iterable
from typing import Generic, TypeVar

from c4bench.errors import UsageError
from c4bench.model.telemetry import ArrivalRecord, CommRecord, ConnRecord, NicRecord, OpRecord, RankRecord
from c4bench.model.window import ARRIVAL, CONN, OP, STATES, Caller, CallName, EndName, HostNames, Window

_Name = TypeVar("_Name", bound=Hashable)

# More of each sort than a host has: 16 ranks with full telemetry files have a quarter of it.
NUMBERS_AT_MOST = 1 << 16


class Numbers(Generic[_Name]):
    """Names of one sort; a number is given again once its name is gone."""

    def __init__(self) -> None:
        self._numbers: dict[_Name, int] = {}
        self._names: list[_Name | None] = []
        self._free: list[int] = []
        self._listed: tuple[_Name | None, ...] | None = ()

    def number(self, name: _Name) -> int:
        """The number of a name, which may be new. Raises UsageError where there are too many."""
        number = self._numbers.get(name)
        if number is None:
            if not self._free:
                if len(self._names) == NUMBERS_AT_MOST:
                    raise UsageError(
                        f"this host's ranks have over {NUMBERS_AT_MOST} connections or kinds of operations; use fewer"
                    )
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


def window_of(
    host: str,
    sequence: int,
    start_s: float,
    end_s: float,
    comms: Collection[CommRecord] = (),
    ranks: Iterable[RankRecord] = (),
    ops: Collection[OpRecord] = (),
    conns: Collection[ConnRecord] = (),
    arrivals: Collection[ArrivalRecord] = (),
    nics: Iterable[NicRecord] = (),
    numbering: Numbering | None = None,
) -> Window:
    """A window with these records; windows with one `numbering` have names in common. Times are rounded to ns."""
    numbers = numbering or Numbering()
    numbers.comms.keep(comms)
    for record in comms:
        numbers.comms.number(record)
    op_table = b"".join(_op(op, numbers) for op in ops)
    conn_table = b"".join(_conn(conn, numbers, round(end_s * 1e9)) for conn in conns)
    arrival_table = b"".join(_arrival(end, numbers) for end in arrivals)
    awaits = b"".join(bits_of(op.awaits) for op in ops)
    tables = op_table, awaits, conn_table, arrival_table
    return Window(host, sequence, start_s, end_s, numbers.names, tuple(ranks), *tables, tuple(nics))


def bits_of(ranks: Iterable[int]) -> bytes:
    """A bit for each of these ranks, up to the last of them."""
    bits = sum(1 << rank for rank in ranks)
    return bits.to_bytes((bits.bit_length() + 7) // 8, "little")


def _op(op: OpRecord, numbers: Numbering) -> bytes:
    caller = numbers.callers.number(Caller(op.comm, op.rank))
    call = numbers.calls.number(CallName(op.kind, op.algorithm, op.dtype))
    times_ns = _ns(op.entered_s), _ns(op.started_s), _ns(op.finished_s)
    return OP.pack(caller, call, op.seq, op.size_bytes, *times_ns, len(bits_of(op.awaits)))


def _conn(conn: ConnRecord, numbers: Numbering, end_ns: int) -> bytes:
    """The row of a record, without what its state has lasted since it began."""
    end = EndName(conn.comm, conn.rank, conn.peer, conn.source, conn.destination, conn.qp)
    state, since_ns = STATES.index(conn.state), _ns(conn.state_since_s)
    spent_ns = [_ns(conn.wait_credit_s), _ns(conn.wait_data_s), _ns(conn.transfer_s)]
    if state and end_ns > since_ns:
        spent_ns[state - 1] -= end_ns - since_ns
    return CONN.pack(
        numbers.sends.number(end), conn.messages, conn.size_bytes, *spent_ns, _ns(conn.shared_s),
        _ns(conn.last_progress_s), conn.outstanding, conn.owed, conn.source_port, state, since_ns,
        conn.posted, conn.posted_sum_ns,
    )  # fmt: skip


def _arrival(end: ArrivalRecord, numbers: Numbering) -> bytes:
    number = numbers.receives.number(EndName(end.comm, end.rank, end.peer, end.source, end.destination, end.qp))
    return ARRIVAL.pack(number, end.messages, end.arrived, end.arrived_sum_ns)


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
