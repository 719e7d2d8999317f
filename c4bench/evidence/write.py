"""Writes our own recordings in the formats of other tools, so that these can be tried on the lab's faults."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from c4bench.c4d.ingest.members import RankMapping
from c4bench.model.recording import Record
from c4bench.model.telemetry import CommRecord, OpRecord, RankRecord
from c4bench.model.window import Window

WORLD = "0"


class JobHistory(NamedTuple):
    """A job's communicators; its operations, `ops[rank]` in the order of calls; and its processes, up to `end_s`.

    `ranks` are the job's. `names` are those that PyTorch would give the communicators: `0` for all ranks.
    """

    job: str
    ranks: tuple[int, ...]
    comms: dict[str, CommRecord]
    seats: dict[str, dict[int, int]]
    names: dict[str, str]
    ops: dict[int, tuple[OpRecord, ...]]
    hosts: dict[int, str]
    processes: dict[int, RankRecord]
    end_s: float

    def ranks_of(self, comm: str) -> tuple[int, ...]:
        """The job's ranks in a communicator, in its order."""
        return tuple(self.seats[comm][member.rank] for member in self.comms[comm].members)

    def state(self, rank: int) -> str:
        """The last known state of a rank's process; `running` if nothing is known of it."""
        return self.processes[rank].state if rank in self.processes else "running"

    def dumping(self) -> Iterator[int]:
        """Ranks whose process could still write something."""
        return (rank for rank in self.ranks if self.state(rank) == "running")


def history(records: Iterable[Record]) -> JobHistory:
    """The history in the windows of one job. A later record of an operation replaces an earlier one."""
    mapping = RankMapping()
    comms: dict[str, CommRecord] = {}
    seats: dict[str, dict[int, int]] = {}
    found: dict[tuple[str, int, int], OpRecord] = {}
    processes: dict[int, RankRecord] = {}
    end_s = 0.0
    for window in records:
        if not isinstance(window, Window):
            continue
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
    for op in found.values():
        ops[seats[op.comm][op.rank]].append(op)
    ordered = {rank: tuple(sorted(mine, key=lambda op: (op.entered_s, op.seq))) for rank, mine in ops.items()}
    names = {
        name: WORLD if len(comm.members) == len(ranks) else str(number)
        for number, (name, comm) in enumerate(sorted(comms.items()), start=1)
    }
    job = next((comm.job for comm in comms.values()), "job")
    hosts = {rank: mapping.host(rank) for rank in ranks}
    return JobHistory(job, ranks, comms, seats, names, ordered, hosts, processes, end_s)


_VERSION = "2.10"
_BACKEND = "nccl"
_TORCH_DTYPES = {"float32": ("Float", 4), "float64": ("Double", 8), "float16": ("Half", 2), "bfloat16": ("BFloat16", 2),
           "int64": ("Long", 8), "int32": ("Int", 4), "uint8": ("Byte", 1)}  # fmt: skip
_NANO = 1_000_000_000


def flight_recorder_files(history: JobHistory) -> Iterator[tuple[str, bytes]]:
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


def _status(history: JobHistory, rank: int, names: list[str]) -> dict[str, dict[str, str]]:
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


def _entries(history: JobHistory, names: list[str], rank: int) -> list[dict[str, Any]]:
    """The entries of a rank: a collective is one, a send or receive is one for each peer, and one for the batch."""
    found: list[dict[str, Any]] = []
    for op in history.ops[rank]:
        transfers = _peers(op, len(history.comms[op.comm].members)) if op.kind == "send" else ()
        seqs = (op.seq, op.seq + 1) if transfers else (op.seq + 1, 0)
        numbers = {"collective_seq_id": seqs[0], "p2p_seq_id": seqs[1], "is_p2p": bool(transfers)}
        entry = _dump_entry(history, names, op) | numbers
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


def _dump_entry(history: JobHistory, names: list[str], op: OpRecord) -> dict[str, Any]:
    dtype, width = _TORCH_DTYPES.get(op.dtype, ("Byte", 1))
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


_INSPECTOR_KINDS = {"all_reduce": "AllReduce", "all_gather": "AllGather", "reduce_scatter": "ReduceScatter",
          "broadcast": "Broadcast", "reduce": "Reduce", "barrier": "AllReduce"}  # fmt: skip


def inspector_files(history: JobHistory) -> Iterator[tuple[str, bytes]]:
    """The logs, `HOST-pidPID.log`."""
    places = {(name, rank): member for name in history.comms for member, rank in enumerate(history.ranks_of(name))}
    for rank in history.ranks:
        process = history.processes.get(rank)
        host, pid = history.hosts[rank], process.pid if process else rank
        lines = [msgspec.json.encode(_inspector_line(history, op, number, places[op.comm, rank], host, pid))
                 for number, op in _numbered(history.ops[rank]) if op.finished_s]  # fmt: skip
        if lines:
            yield f"{host}-pid{pid}.log", b"\n".join(lines) + b"\n"


def _numbered(ops: Iterable[OpRecord]) -> Iterator[tuple[int, OpRecord]]:
    """The operations with their numbers among those of their kind and communicator."""
    made = Counter[tuple[str, str]]()
    for op in ops:
        place = op.comm, _INSPECTOR_KINDS.get(op.kind, op.kind)
        made[place] += 1
        yield made[place], op


def _inspector_line(
    history: JobHistory, op: OpRecord, number: int, member: int, host: str, pid: int
) -> dict[str, object]:
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
            "coll": _INSPECTOR_KINDS.get(op.kind, op.kind),
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


_KINETO_WIDTHS = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4}
_KINETO_DTYPES = {"float32": "Float", "float64": "Double", "float16": "Half", "bfloat16": "BFloat16", "int64": "Long",
           "int32": "Int"}  # fmt: skip


def kineto_files(history: JobHistory) -> Iterator[tuple[str, bytes]]:
    """The traces, `rank_N.pt.trace.json`. Operations that have not finished have no event, as in a real trace."""
    members = {name: history.ranks_of(name) for name in history.comms}
    for rank in history.dumping():
        events = [event for op in history.ops[rank] if op.finished_s
                  for event in _events(history, members[op.comm], rank, op)]  # fmt: skip
        info = {"backend": "nccl", "rank": rank, "world_size": len(history.ranks)}
        yield f"rank_{rank}.pt.trace.json", msgspec.json.encode({"distributedInfo": info, "traceEvents": events})


def _events(history: JobHistory, members: tuple[int, ...], rank: int, op: OpRecord) -> tuple[dict[str, object], ...]:
    """The call, which returns at once, and the kernel, which runs until the operation has ended."""
    elements = op.size_bytes // _KINETO_WIDTHS.get(op.dtype, 1)
    arguments = {
        "Collective name": op.kind,
        "dtype": _KINETO_DTYPES.get(op.dtype, "Byte"),
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


_RAS_KINDS = {
    "broadcast": "Broadcast",
    "reduce": "Reduce",
    "all_gather": "AllGather",
    "reduce_scatter": "ReduceScatter",
    "all_reduce": "AllReduce",
    "barrier": "AllReduce",
}
_COUNTED = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")


def ras_files(history: JobHistory) -> Iterator[tuple[str, bytes]]:
    """One file, `ras.json`."""
    counts: dict[tuple[str, int], Counter[str]] = {}
    for rank, ops in history.ops.items():
        for op in ops:
            counts.setdefault((op.comm, rank), Counter())[_RAS_KINDS.get(op.kind, "")] += 1
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


def _communicator(history: JobHistory, name: str, counts: dict[tuple[str, int], Counter[str]]) -> dict[str, Any]:
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


# By the name of a format: the files, by name, that it has for a job.
WRITERS: dict[str, Callable[[JobHistory], Iterator[tuple[str, bytes]]]] = {
    "flight-recorder": flight_recorder_files,
    "ras": ras_files,
    "inspector": inspector_files,
    "kineto": kineto_files,
}
