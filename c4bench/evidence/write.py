"""Writes our own recordings in the formats of other tools, so that these can be tried on the lab's faults."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from c4bench.c4d.observe.members import RankMapping
from c4bench.model.recording import Record
from c4bench.model.telemetry import CommRecord, OpRecord, RankRecord
from c4bench.model.window import Window

Files = Iterator[tuple[str, bytes]]  # names and contents

_WORLD = "0"
_NANO = 1_000_000_000
# PyTorch's names of data types, with the bytes of an element.
_DTYPES = {
    "float32": ("Float", 4), "float64": ("Double", 8), "float16": ("Half", 2), "bfloat16": ("BFloat16", 2),
    "int64": ("Long", 8), "int32": ("Int", 4), "uint8": ("Byte", 1),
}  # fmt: skip
# NCCL's names of collectives, to which a barrier is one like any other.
_NCCL_KINDS = {
    "broadcast": "Broadcast", "reduce": "Reduce", "all_gather": "AllGather", "reduce_scatter": "ReduceScatter",
    "all_reduce": "AllReduce", "barrier": "AllReduce",
}  # fmt: skip


class JobComm(NamedTuple):
    """A communicator: its name, the one that PyTorch would give it (`0` for all ranks), and the job's ranks in it."""

    name: str
    group: str
    ranks: tuple[int, ...]


class JobHistory(NamedTuple):
    """A job up to `end_s`: its ranks, communicators, operations (`ops[rank]` in the order of calls) and processes.

    The last known state of a rank's process is `running` if nothing is known of it.
    """

    ranks: tuple[int, ...]
    comms: dict[str, JobComm]
    ops: dict[int, list[OpRecord]]
    hosts: dict[int, str]
    pids: dict[int, int]
    states: dict[int, str]
    end_s: float

    def dumping(self) -> Iterator[int]:
        """Ranks whose process could still write something."""
        return (rank for rank in self.ranks if self.states[rank] == "running")


def history(records: Iterable[Record]) -> JobHistory:
    """The history in the windows of one job. A later record of an operation replaces an earlier one."""
    mapping = RankMapping()
    comms: dict[str, CommRecord] = {}
    seats: dict[str, dict[int, int]] = {}
    found: dict[tuple[str, int, int], OpRecord] = {}
    processes: dict[int, RankRecord] = {}
    end_s = 0.0
    for window in (one for one in records if isinstance(one, Window)):
        end_s = max(end_s, window.end_s)
        for comm in window.comms:
            if comms.get(comm.comm) != comm:
                comms[comm.comm], seats[comm.comm] = comm, mapping.add_comm(comm)
        for process in window.ranks:
            mapping.add_process(process.rank, process.host)
            processes[process.rank] = process
        found |= {(op.comm, op.rank, op.seq): op for op in window.ops}
    ranks = tuple(sorted({rank for of in seats.values() for rank in of.values()}))
    ops: dict[int, list[OpRecord]] = {rank: [] for rank in ranks}
    for op in sorted(found.values(), key=lambda op: (op.entered_s, op.seq)):
        ops[seats[op.comm][op.rank]].append(op)
    groups = {name: str(number) for number, name in enumerate(sorted(comms), start=1)}
    groups |= {name: _WORLD for name, comm in comms.items() if len(comm.members) == len(ranks)}
    members = {name: tuple(seats[name][member.rank] for member in comm.members) for name, comm in comms.items()}
    return JobHistory(
        ranks=ranks,
        comms={name: JobComm(name, groups[name], members[name]) for name in comms},
        ops=ops,
        hosts={rank: mapping.host(rank) for rank in ranks},
        pids={rank: processes[rank].pid if rank in processes else rank for rank in ranks},
        states={rank: processes[rank].state if rank in processes else "running" for rank in ranks},
        end_s=end_s,
    )


def _elements(op: OpRecord, size: int) -> tuple[str, int, int]:
    """PyTorch's name of the data type, and how many elements an operation of `size` ranks takes in and gives out."""
    dtype, width = _DTYPES.get(op.dtype, ("Byte", 1))
    taken = op.size_bytes // width
    return dtype, taken, taken * (size if op.kind == "all_gather" else 1)


def _flight_recorder(job: JobHistory) -> Files:
    """The dumps, `trace_rank_N.json`."""
    config = {comm.group: {"name": comm.group, "desc": comm.name, "ranks": str(list(comm.ranks))}
              for comm in job.comms.values()}  # fmt: skip
    everybody = {"name": _WORLD, "desc": "default_pg", "ranks": str(list(job.ranks))}
    mine: dict[int, list[str]] = {rank: [] for rank in job.ranks}
    for comm in job.comms.values():
        for rank in comm.ranks:
            mine[rank].append(comm.group)
    for rank in job.dumping():
        dump = {
            "version": "2.10",
            "comm_lib_version": "",
            "nccl_comm_state": {},
            "pg_config": {_WORLD: everybody} | {group: config[group] for group in mine[rank]},
            "pg_status": {str(number): _status(job, rank, group) for number, group in enumerate(mine[rank])},
            "entries": _entries(job, rank, mine[rank]),
        }
        yield f"trace_rank_{rank}.json", msgspec.json.encode(dump)


def _status(job: JobHistory, rank: int, group: str) -> dict[str, str]:
    ops = [op for op in job.ops[rank] if job.comms[op.comm].group == group]
    reached = {"enqueued": ops, "started": ops, "completed": (op for op in ops if op.finished_s)}
    return {f"last_{word}_collective": str(max((op.seq + 1 for op in some), default=-1))
            for word, some in reached.items()}  # fmt: skip


def _entries(job: JobHistory, rank: int, groups: list[str]) -> list[dict[str, Any]]:
    """The entries of a rank: a collective is one, a send or receive is one for each peer, and one for the batch."""
    found: list[dict[str, Any]] = []
    for op in job.ops[rank]:
        comm = job.comms[op.comm]
        transfers = _peers(op, len(comm.ranks)) if op.kind == "send" else ()
        seqs = (op.seq, op.seq + 1) if transfers else (op.seq + 1, 0)
        numbers = {"collective_seq_id": seqs[0], "p2p_seq_id": seqs[1], "is_p2p": bool(transfers)}
        entry = _dump_entry(comm, groups.index(comm.group), op) | numbers
        if len(transfers) > 1:
            posted = {"state": "scheduled", "retired": False, "time_discovered_completed_ns": 0, "duration_ms": None}
            found += [entry | posted | {"profiling_name": f"nccl:{name}"} for name in transfers]
            transfers, entry["is_p2p"] = ("coalesced",), False
        found += [entry | {"profiling_name": f"nccl:{name}"} for name in transfers or (op.kind,)]
    return [entry | {"record_id": number} for number, entry in enumerate(found)]


def _peers(op: OpRecord, size: int) -> tuple[str, ...]:
    """What a `send` is: of two ranks, one to the other; of more, each to the next one, in a batch."""
    if size == 2:
        return ("send 0->1",) if op.rank == 0 else ("recv 1<-0",)
    return f"send {op.rank}->{(op.rank + 1) % size}", f"recv {op.rank}<-{(op.rank - 1) % size}"


def _dump_entry(comm: JobComm, number: int, op: OpRecord) -> dict[str, Any]:
    """A collective. It has started when its rank calls it: nothing of a rank waits in a queue, as on a GPU."""
    dtype, taken, given = _elements(op, len(comm.ranks))
    entry = {
        "pg_id": number,
        "process_group": [comm.group, comm.name],
        "op_id": op.seq + 1,
        "time_created_ns": round(op.entered_s * _NANO),
        "input_sizes": [[taken]],
        "input_dtypes": [dtype],
        "output_sizes": [[given]],
        "output_dtypes": [dtype],
        "state": "completed" if op.finished_s else "started",
        "time_discovered_started_ns": round(op.entered_s * _NANO),
        "time_discovered_completed_ns": round(op.finished_s * _NANO),
        "retired": bool(op.finished_s),
        "timeout_ms": 600_000,
    }
    return entry | ({"duration_ms": (op.finished_s - op.entered_s) * 1e3} if op.finished_s else {})


def _inspector(job: JobHistory) -> Files:
    """The logs, `HOST-pidPID.log`."""
    for rank in job.ranks:
        made = Counter[tuple[str, str]]()
        lines: list[bytes] = []
        for op in job.ops[rank]:
            kind = _NCCL_KINDS.get(op.kind, op.kind)
            made[op.comm, kind] += 1
            if op.finished_s:
                line = _inspector_line(op, kind, made[op.comm, kind], len(job.comms[op.comm].ranks))
                line["metadata"] |= {"hostname": job.hosts[rank], "pid": job.pids[rank]}
                lines.append(msgspec.json.encode(line) + b"\n")
        if lines:
            yield f"{job.hosts[rank]}-pid{job.pids[rank]}.log", b"".join(lines)


def _inspector_line(op: OpRecord, kind: str, number: int, size: int) -> dict[str, dict[str, Any]]:
    took_us = (op.finished_s - op.entered_s) * 1e6
    rate_gbs = op.size_bytes / took_us / 1e3 if took_us > 0 else 0.0
    return {
        "header": {"id": op.comm, "comm_name": op.comm, "rank": op.rank, "n_ranks": size, "nnodes": size},
        "metadata": {
            "inspector_output_format_version": "v4.0",
            "git_rev": "",
            "rec_mechanism": "nccl_profiler_interface",
            "dump_timestamp_us": round(op.finished_s * 1e6),
        },
        "coll_perf": {
            "coll": kind,
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


def _kineto(job: JobHistory) -> Files:
    """The traces, `rank_N.pt.trace.json`. Operations that have not finished have no event, as in a real trace."""
    for rank in job.dumping():
        events = [event for op in job.ops[rank] if op.finished_s for event in _events(job.comms[op.comm], rank, op)]
        info = {"backend": "nccl", "rank": rank, "world_size": len(job.ranks)}
        yield f"rank_{rank}.pt.trace.json", msgspec.json.encode({"distributedInfo": info, "traceEvents": events})


def _events(comm: JobComm, rank: int, op: OpRecord) -> tuple[dict[str, object], ...]:
    """The call, which returns at once, and the kernel, which runs until the operation has ended."""
    dtype, taken, given = _elements(op, len(comm.ranks))
    arguments = {
        "Collective name": op.kind,
        "dtype": dtype,
        "In msg nelems": taken,
        "Out msg nelems": given,
        "Group size": len(comm.ranks),
        "Process Group Name": comm.group,
        "Process Group Description": comm.name,
        "Process Group Ranks": str(list(comm.ranks)),
        "Rank": rank,
        "Seq": op.seq + 1,
    }
    call = {"cat": "cpu_op", "name": "record_param_comms", "tid": 1, "dur": 1.0}
    took_us = (op.finished_s - op.entered_s) * 1e6
    kernel = {"cat": "kernel", "name": f"ncclDevKernel_{op.kind}", "tid": 7, "dur": took_us}
    shared = {"ph": "X", "pid": rank, "ts": op.entered_s * 1e6, "args": arguments}
    return call | shared, kernel | shared


def _ras(job: JobHistory) -> Files:
    """One file, `ras.json`."""
    communicators = [_ras_communicator(job, comm) for _, comm in sorted(job.comms.items())]
    document = {
        "nccl_version": "2.28.7",
        "cuda_runtime_version": 0,
        "cuda_driver_version": 0,
        "timestamp": f"{datetime.fromtimestamp(job.end_s, UTC):%Y-%m-%d %H:%M:%S}",
        "communicators_count": len(communicators),
        "communicators": communicators,
        "ras": {"collection_time_sec": 0.0, "timeouts_count": 0},
    }
    yield "ras.json", msgspec.json.encode(document)


def _ras_communicator(job: JobHistory, comm: JobComm) -> dict[str, Any]:
    ranks: list[dict[str, Any]] = []
    missing: list[dict[str, Any]] = []
    for member, rank in enumerate(comm.ranks):
        entry: dict[str, Any] = {"rank": member, "host": job.hosts[rank], "pid": job.pids[rank]}
        if job.states[rank] == "running":
            status = {"init_state": 0, "async_error": 0, "finalize_called": False, "destroy_flag": False,
                      "abort_flag": False}  # fmt: skip
            made = Counter(_NCCL_KINDS.get(op.kind) for op in job.ops[rank] if op.comm == comm.name)
            counts = {kind: made[kind] for kind in dict.fromkeys(_NCCL_KINDS.values())}
            ranks.append(entry | {"status": status, "collective_counts": counts})
        else:
            dead = job.states[rank] in {"killed", "exited"}
            missing.append(entry | {"status": {"unresponsive": not dead, "considered_dead": dead}})
    return {
        "hash": f"0x{_hash_of(comm.name):016x}",
        "size": len(ranks) + len(missing),
        "ranks_count": len(ranks),
        "missing_ranks_count": len(missing),
        "ranks": ranks,
        "missing_ranks": missing,
    }


def _hash_of(name: str) -> int:
    """A number for a communicator, the same in every run (FNV-1a)."""
    value = 0xCBF29CE484222325
    for byte in name.encode():
        value = (value ^ byte) * 0x100000001B3 % (1 << 64)
    return value


# By the name of a format: the files that it has for a job.
WRITERS: dict[str, Callable[[JobHistory], Files]] = {
    "flight-recorder": _flight_recorder,
    "ras": _ras,
    "inspector": _inspector,
    "kineto": _kineto,
}
