"""JSON in the manner of NCCL's RAS (2.28.7 and later): the calls of each rank, by kind, and who is missing."""

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec

from c4bench.c4d.evidence.write.history import History

_KINDS = {"broadcast": "Broadcast", "reduce": "Reduce", "all_gather": "AllGather", "reduce_scatter": "ReduceScatter",
          "all_reduce": "AllReduce", "barrier": "AllReduce"}  # fmt: skip
_COUNTED = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")


def files(history: History) -> Iterator[tuple[str, bytes]]:
    """One file, `ras.json`."""
    counts: dict[tuple[str, int], Counter[str]] = {}
    for rank, ops in history.ops.items():
        for op in ops:
            counts.setdefault((op.comm, rank), Counter())[_KINDS.get(op.kind, "")] += 1
    communicators = [_communicator(history, name, counts) for name in sorted(history.comms)]
    document = {
        "nccl_version": "2.28.7",
        "cuda_runtime_version": 0,
        "cuda_driver_version": 0,
        "timestamp": f"{datetime.fromtimestamp(history.end_s, UTC):%Y-%m-%d %H:%M:%S}",
        "communicators_count": len(communicators),
        "communicators": communicators,
        "ras": {"collection_time_sec": 0.0, "timeouts_count": 0},
    }
    yield "ras.json", msgspec.json.encode(document)


def _communicator(history: History, name: str, counts: dict[tuple[str, int], Counter[str]]) -> dict[str, Any]:
    ranks, missing = [], []
    for member, rank in enumerate(history.ranks_of(name)):
        state = history.state(rank)
        process = history.processes.get(rank)
        entry: dict[str, Any] = {"rank": member, "host": history.hosts[rank], "pid": process.pid if process else rank}
        if state == "running":
            count = counts.get((name, rank), Counter[str]())
            status = {"init_state": 0, "async_error": 0, "finalize_called": False, "destroy_flag": False,
                      "abort_flag": False}  # fmt: skip
            ranks.append(entry | {"status": status, "collective_counts": {kind: count[kind] for kind in _COUNTED}})
        else:
            dead = state in {"killed", "exited"}
            missing.append(entry | {"status": {"unresponsive": not dead, "considered_dead": dead}})
    return {
        "hash": f"0x{abs(hash_of(name)):016x}",
        "size": len(ranks) + len(missing),
        "ranks_count": len(ranks),
        "missing_ranks_count": len(missing),
        "ranks": ranks,
        "missing_ranks": missing,
    }


def hash_of(name: str) -> int:
    """A number for a communicator, the same in every run (FNV-1a)."""
    value = 0xCBF29CE484222325
    for byte in name.encode():
        value = (value ^ byte) * 0x100000001B3 % (1 << 64)
    return value
