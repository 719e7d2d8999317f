"""NCCL Inspector's JSON lines (format v4.0): the operations that each process has finished, one file a process."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator

import msgspec

from c4bench.c4d.evidence.write.history import History
from c4bench.model.telemetry import OpRecord

_KINDS = {"all_reduce": "AllReduce", "all_gather": "AllGather", "reduce_scatter": "ReduceScatter",
          "broadcast": "Broadcast", "reduce": "Reduce", "barrier": "AllReduce"}  # fmt: skip


def files(history: History) -> Iterator[tuple[str, bytes]]:
    """The logs, `HOST-pidPID.log`."""
    places = {(name, rank): member for name in history.comms for member, rank in enumerate(history.ranks_of(name))}
    for rank in history.ranks:
        process = history.processes.get(rank)
        host, pid = history.hosts[rank], process.pid if process else rank
        lines = [msgspec.json.encode(_line(history, op, number, places[op.comm, rank], host, pid))
                 for number, op in _numbered(history.ops[rank]) if op.finished_s]  # fmt: skip
        if lines:
            yield f"{host}-pid{pid}.log", b"\n".join(lines) + b"\n"


def _numbered(ops: Iterable[OpRecord]) -> Iterator[tuple[int, OpRecord]]:
    """The operations with their numbers among those of their kind and communicator."""
    made = Counter[tuple[str, str]]()
    for op in ops:
        place = op.comm, _KINDS.get(op.kind, op.kind)
        made[place] += 1
        yield made[place], op


def _line(history: History, op: OpRecord, number: int, member: int, host: str, pid: int) -> dict[str, object]:
    size = len(history.comms[op.comm].members)
    took_us = (op.finished_s - op.entered_s) * 1e6
    rate_gbs = op.size_bytes / took_us / 1e3 if took_us > 0 else 0.0
    return {
        "header": {"id": op.comm, "comm_name": op.comm, "rank": member, "n_ranks": size, "nnodes": size},
        "metadata": {
            "inspector_output_format_version": "v4.0",
            "git_rev": "",
            "rec_mechanism": "nccl_profiler_interface",
            "dump_timestamp_us": round(op.finished_s * 1e6),
            "hostname": host,
            "pid": pid,
        },
        "coll_perf": {
            "coll": _KINDS.get(op.kind, op.kind),
            "coll_sn": number,
            "coll_msg_size_bytes": op.size_bytes,
            "coll_exec_time_us": took_us,
            "coll_timing_source": "kernel_cpu",
            "coll_algobw_gbs": rate_gbs,
            "coll_busbw_gbs": rate_gbs,
            "event_trace_ts": {
                "coll_start_ts": math.floor(op.entered_s * 1e6),
                "kernel_events": [{"channel_id": 0, "kernel_stop_ts": math.ceil(op.finished_s * 1e6)}],
            },
        },
    }
