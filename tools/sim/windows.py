"""Windows of records that are given one by one, as simulated ranks and tests have them."""

from collections.abc import Collection, Iterable

from c4bench.model.telemetry import ArrivalRecord, CommRecord, ConnRecord, NicRecord, OpRecord, RankRecord
from c4bench.model.window import ARRIVAL, CONN, OP, STATES, Caller, CallName, EndName, Numbering, Window


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
