"""The flight recorder dumps of a simulated job's ranks, as `ProcessGroupNCCL` of PyTorch 2.5 to 2.8 writes them.

A send or receive is an entry of its own; those in one batch keep the state `scheduled`, and the entry `nccl:coalesced`
after them has that of all. Without timing no call is ever `started`.
"""

import pickle
import random
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from tools.foreign.layout import Dimension
from tools.foreign.run_ahead import FaultKind, Group, RankRun, RunAhead

_BEGIN_NS = 1_790_000_000_000_000_000
_CALL_NS = 1_000_000
_SKEW_NS = 100_000
_TOOK_NS = 1_000_000_000


class Options(NamedTuple):
    """How the dumps are written: PyTorch's settings, and whether groups are described.

    `counts_all`: a group's status has one number for collectives and transfers together, else that of the newest.
    """

    timing: bool
    only_active: bool
    buffer: int
    pickled: bool
    described: bool
    counts_all: bool
    first: int


def drawn_options(rng: random.Random) -> Options:
    """Settings as people have them; `first` is how many calls each group has made before."""
    return Options(
        timing=rng.random() < 0.3,
        only_active=rng.random() < 0.4,
        buffer=rng.choice((20, 50, 100, 500, 2000)),
        pickled=rng.random() < 0.5,
        described=rng.random() < 0.8,
        counts_all=rng.random() < 0.5,
        first=rng.randrange(10_000),
    )


def dumps(job: RunAhead, options: Options, rng: random.Random) -> Iterator[tuple[str, bytes]]:
    """The names and contents of all ranks' dumps."""
    for run in job.runs:
        dump = _dump(job, run, options, rng.randrange(_SKEW_NS))
        data = pickle.dumps(dump, 2) if options.pickled else msgspec.json.encode(dump)
        yield f"nccl_trace_rank_{run.rank}", data


def _dump(job: RunAhead, run: RankRun, options: Options, skew_ns: int) -> dict[str, Any]:
    groups = sorted(run.groups.values(), key=lambda group: int(group.name))
    places = {group.dimension: place for place, group in enumerate(groups)}
    config = {group.name: {"name": group.name, "desc": _description(group, options), "ranks": str(list(group.members))}
              for group in groups}  # fmt: skip
    entries = [entry for number in range(run.made) for entry in _entries(job, run, number, places, options, skew_ns)]
    numbered = [entry | {"record_id": number} for number, entry in enumerate(entries, start=options.first)]
    kept = numbered[-options.buffer :]
    if options.only_active:
        kept = [entry for entry in kept if not entry["retired"]]
    status = {str(place): _status(run, group, options) for place, group in enumerate(groups)}
    return {"version": "2.9", "comm_lib_version": "2.26.2", "pg_config": config, "pg_status": status, "entries": kept}


def _description(group: Group, options: Options) -> str:
    return str(group.dimension) if options.described or group.dimension is Dimension.WORLD else "undefined"


def _status(run: RankRun, group: Group, options: Options) -> dict[str, int]:
    """The newest call of a group that is made, running and ended; a group that was never called has none."""
    mine = [number for number in range(run.made) if run.steps[number].dimension is group.dimension]
    reached = {
        "enqueued": mine,
        "started": [number for number in mine if options.timing and run.running[number]],
        "completed": [number for number in mine if run.ended[number]],
    }
    shown = {word: _number(run, numbers, options) for word, numbers in reached.items()}
    return {f"last_{word}_collective": number for word, number in shown.items()}


def _number(run: RankRun, numbers: list[int], options: Options) -> int:
    if not numbers:
        return -1
    if options.counts_all:
        return options.first + len(numbers)
    newest = numbers[-1]
    return run.seqs[newest] + (0 if run.steps[newest].transfers else options.first)


def _entries(
    job: RunAhead, run: RankRun, number: int, places: dict[Dimension, int], options: Options, skew_ns: int
) -> Iterator[dict[str, Any]]:
    """The entries of a call: one, or those of its transfers and what ends the batch."""
    step, group = run.steps[number], run.groups[run.steps[number].dimension]
    ended, running = bool(run.ended[number]), bool(run.running[number])
    created_ns = _BEGIN_NS + number * _CALL_NS + skew_ns
    batch = run.seqs[number] if step.transfers else 0
    fault = job.faults.get(run.rank)
    wrong = fault is not None and fault.kind is FaultKind.MISMATCH and fault.call == number
    entry: dict[str, Any] = {
        "pg_id": places[group.dimension],
        "process_group": (group.name, _description(group, options)),
        "collective_seq_id": options.first + (0 if step.transfers else run.seqs[number]),
        "p2p_seq_id": batch,
        "op_id": number + 1,
        "profiling_name": "nccl:broadcast" if wrong else f"nccl:{step.kind}",
        "time_created_ns": created_ns,
        "input_sizes": [[step.elements]],
        "input_dtypes": ["BFloat16"],
        "output_sizes": [[step.elements]],
        "output_dtypes": ["BFloat16"],
        "state": "completed" if ended else "started" if running and options.timing else "scheduled",
        "time_discovered_started_ns": created_ns if running and options.timing else None,
        "time_discovered_completed_ns": created_ns + _TOOK_NS if ended else None,
        "retired": ended,
        "timeout_ms": 600_000,
        "is_p2p": bool(step.transfers),
    }
    if not step.transfers:
        yield entry
        return
    here = job.layout.stage(run.rank)
    alone = len(step.transfers) == 1
    for way, stage in step.transfers:
        name = f"nccl:{way} {here}{'->' if way == 'send' else '<-'}{stage}"
        posted = {} if alone else {"state": "scheduled", "retired": ended, "time_discovered_completed_ns": None}
        yield entry | {"profiling_name": name} | posted
    if not alone:
        yield entry | {"profiling_name": "nccl:coalesced", "is_p2p": False, "input_sizes": [], "output_sizes": []}
