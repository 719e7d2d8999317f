"""Bugs of the job that look like hangs: ranks call different collectives, or the same ones in different order."""

from collections.abc import Callable, Iterable, Mapping

from c4bench.c4d.confidence import confidence
from c4bench.c4d.diagnosis import Finding
from c4bench.c4d.hang.wait_for_graph import WaitForGraph
from c4bench.model.diagnosis import Cause, Component, OperationSide, Syndrome
from c4bench.model.telemetry import OpRecord

Place = tuple[str, int]  # communicator, sequence number
# The records of an operation, by rank of the job.
RecordsOf = Callable[[str, int], Mapping[int, OpRecord]]


def side(op: OpRecord, ranks: Iterable[int]) -> OperationSide:
    """An operation that `ranks` of the job have entered."""
    return OperationSide(op.comm, op.seq, op.kind, op.dtype, op.size_bytes, "started", tuple(sorted(ranks)))


def mismatch_finding(
    job: str, graph: WaitForGraph, records_of: RecordsOf, since_s: float, places: Iterable[Place] = ()
) -> Finding | None:
    """The finding on a mismatch between ranks of `job`; None if they agree.

    Compared are the operations in which ranks wait, and those at `places` besides. `records_of` gives an operation's
    records, of which those of unknown kind have none.
    """
    called = {(op.comm, op.seq) for op in graph.pending.values()}.union(places)
    return _different(job, sorted(called), records_of, since_s) or _reordered(job, graph, since_s)


def _different(job: str, places: Iterable[Place], records_of: RecordsOf, since_s: float) -> Finding | None:
    """Members of one communicator that call different operations with one sequence number."""
    for place in places:
        sides: dict[tuple[str, str, int], list[tuple[int, OpRecord]]] = {}
        for rank, op in records_of(*place).items():
            sides.setdefault((op.kind, op.dtype, op.size_bytes), []).append((rank, op))
        if len(sides) > 1:
            called = sorted(sides.values(), key=len)
            operations = [side(ops[0][1], (rank for rank, _ in ops)) for ops in called]
            return _verdict(job, _cause([ops[0][1] for ops in called]), operations, since_s)
    return None


def _cause(ops: list[OpRecord]) -> Cause:
    if len({op.kind for op in ops}) > 1:
        return Cause.COLLECTIVE_TYPE_MISMATCH
    if len({op.dtype for op in ops}) > 1:
        return Cause.COLLECTIVE_DTYPE_MISMATCH
    return Cause.SIZE_OR_SYNTAX_MISMATCH


def _reordered(job: str, graph: WaitForGraph, since_s: float) -> Finding | None:
    """Ranks that wait for one another in a cycle: each has entered first what the next has not entered."""
    ranks = graph.cycle()
    if not ranks:
        return None
    operations = [side(graph.pending[rank], (rank,)) for rank in ranks]
    return _verdict(job, Cause.COLLECTIVE_ORDER_MISMATCH, operations, since_s)


def _verdict(job: str, cause: Cause, operations: list[OperationSide], since_s: float) -> Finding:
    called = [
        f"ranks {', '.join(map(str, op.ranks[:8]))} called {op.profiling_name} #{op.collective_seq_id} "
        f"({op.dtype}, {op.size_bytes} bytes) of {op.pg_name}"
        for op in operations
    ]
    return Finding(
        Syndrome.NON_COMMUNICATION_HANG,
        cause,
        Component("job", job),
        since_s,
        confidence(),
        tuple(called),
        "the same program ending well on the same ranks",
        {"sides": float(len(operations))},
        operations=tuple(operations),
    )
