"""PyTorch's flight recorder, JSON of format 2.10 as a job on NCCL dumps it: a file for each rank that can write."""

from collections.abc import Iterator
from typing import Any

import msgspec

from c4bench.c4d.evidence.write.history import WORLD, History
from c4bench.model.telemetry import OpRecord

_VERSION = "2.10"
_BACKEND = "nccl"
_DTYPES = {"float32": ("Float", 4), "float64": ("Double", 8), "float16": ("Half", 2), "bfloat16": ("BFloat16", 2),
           "int64": ("Long", 8), "int32": ("Int", 4), "uint8": ("Byte", 1)}  # fmt: skip
_NANO = 1_000_000_000


def files(history: History) -> Iterator[tuple[str, bytes]]:
    """The dumps, `trace_rank_N.json`."""
    config = {
        history.names[name]: {"name": history.names[name], "desc": name, "ranks": str(list(history.ranks_of(name)))}
        for name in history.comms
    }
    everybody = {"name": WORLD, "desc": "default_pg", "ranks": str(list(history.ranks))}
    mine: dict[int, list[str]] = {rank: [] for rank in history.ranks}
    for name in history.comms:
        for rank in history.ranks_of(name):
            mine[rank].append(history.names[name])
    for rank in history.dumping():
        dump = {
            "version": _VERSION,
            "comm_lib_version": "",
            "nccl_comm_state": {},
            "pg_config": {WORLD: everybody} | {name: config[name] for name in mine[rank]},
            "pg_status": _status(history, rank, mine[rank]),
            "entries": _entries(history, mine[rank], rank),
        }
        yield f"trace_rank_{rank}.json", msgspec.json.encode(dump)


def _status(history: History, rank: int, names: list[str]) -> dict[str, dict[str, str]]:
    status = {}
    for number, name in enumerate(names):
        ops = [op for op in history.ops[rank] if history.names[op.comm] == name]
        newest = {
            "last_enqueued_collective": max((op.seq + 1 for op in ops), default=-1),
            "last_started_collective": max((op.seq + 1 for op in ops if op.started_s), default=-1),
            "last_completed_collective": max((op.seq + 1 for op in ops if op.finished_s), default=-1),
        }
        status[str(number)] = {key: str(value) for key, value in newest.items()}
    return status


def _entries(history: History, names: list[str], rank: int) -> list[dict[str, Any]]:
    """The entries of a rank: a collective is one, a send or receive is one for each peer, and one for the batch."""
    found: list[dict[str, Any]] = []
    for op in history.ops[rank]:
        transfers = _peers(op, len(history.comms[op.comm].members)) if op.kind == "send" else ()
        seqs = (op.seq, op.seq + 1) if transfers else (op.seq + 1, 0)
        numbers = {"collective_seq_id": seqs[0], "p2p_seq_id": seqs[1], "is_p2p": bool(transfers)}
        entry = _entry(history, names, op) | numbers
        if len(transfers) > 1:
            posted = {"state": "scheduled", "retired": False, "time_discovered_completed_ns": 0, "duration_ms": None}
            found += [entry | posted | {"profiling_name": f"{_BACKEND}:{name}"} for name in transfers]
            transfers, entry["is_p2p"] = ("coalesced",), False
        found += [entry | {"profiling_name": f"{_BACKEND}:{name}"} for name in transfers or (op.kind,)]
    return [entry | {"record_id": number} for number, entry in enumerate(found)]


def _peers(op: OpRecord, size: int) -> tuple[str, ...]:
    """What a `send` is: of two ranks, one to the other; of more, each to the next one, in a batch."""
    if size == 2:
        return ("send 0->1",) if op.rank == 0 else ("recv 1<-0",)
    return f"send {op.rank}->{(op.rank + 1) % size}", f"recv {op.rank}<-{(op.rank - 1) % size}"


def _entry(history: History, names: list[str], op: OpRecord) -> dict[str, Any]:
    dtype, width = _DTYPES.get(op.dtype, ("Byte", 1))
    name = history.names[op.comm]
    elements = op.size_bytes // width
    out = elements * (len(history.comms[op.comm].members) if op.kind == "all_gather" else 1)
    entry = {
        "pg_id": names.index(name),
        "process_group": [name, op.comm],
        "op_id": op.seq + 1,
        "time_created_ns": round(op.entered_s * _NANO),
        "input_sizes": [[elements]],
        "input_dtypes": [dtype],
        "output_sizes": [[out]],
        "output_dtypes": [dtype],
        "state": "completed" if op.finished_s else "started" if op.started_s else "scheduled",
        "time_discovered_started_ns": round(op.started_s * _NANO),
        "time_discovered_completed_ns": round(op.finished_s * _NANO),
        "retired": bool(op.finished_s),
        "timeout_ms": 600_000,
    }
    return entry | ({"duration_ms": (op.finished_s - op.entered_s) * 1e3} if op.finished_s else {})
