"""Traces in the form of PyTorch's profiler (Kineto), one file a rank: an operation is a call and a kernel."""

from collections.abc import Iterator

import msgspec

from c4bench.c4d.evidence.write.history import History
from c4bench.model.telemetry import OpRecord

_WIDTHS = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4}
_DTYPES = {"float32": "Float", "float64": "Double", "float16": "Half", "bfloat16": "BFloat16", "int64": "Long",
           "int32": "Int"}  # fmt: skip


def files(history: History) -> Iterator[tuple[str, bytes]]:
    """The traces, `rank_N.pt.trace.json`. Operations that have not finished have no event, as in a real trace."""
    members = {name: history.ranks_of(name) for name in history.comms}
    for rank in history.dumping():
        events = [event for op in history.ops[rank] if op.finished_s
                  for event in _events(history, members[op.comm], rank, op)]  # fmt: skip
        info = {"backend": "nccl", "rank": rank, "world_size": len(history.ranks)}
        yield f"rank_{rank}.pt.trace.json", msgspec.json.encode({"distributedInfo": info, "traceEvents": events})


def _events(history: History, members: tuple[int, ...], rank: int, op: OpRecord) -> tuple[dict[str, object], ...]:
    """The call, which returns at once, and the kernel, which runs until the operation has ended."""
    elements = op.size_bytes // _WIDTHS.get(op.dtype, 1)
    arguments = {
        "Collective name": op.kind,
        "dtype": _DTYPES.get(op.dtype, "Byte"),
        "In msg nelems": elements,
        "Out msg nelems": elements * (len(members) if op.kind == "all_gather" else 1),
        "Group size": len(members),
        "Process Group Name": history.names[op.comm],
        "Process Group Description": op.comm,
        "Process Group Ranks": str(list(members)),
        "Rank": rank,
        "Seq": op.seq + 1,
    }
    call = {"cat": "cpu_op", "name": "record_param_comms", "tid": 1, "dur": 1.0}
    took_us = (op.finished_s - op.entered_s) * 1e6
    kernel = {"cat": "kernel", "name": f"ncclDevKernel_{op.kind}", "tid": 7, "dur": took_us}
    shared = {"ph": "X", "pid": rank, "ts": op.entered_s * 1e6, "args": arguments}
    return call | shared, kernel | shared
