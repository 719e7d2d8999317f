"""Logs of large jobs that failed, with what happened, and how long `c4bench detect` takes to read and judge them.

A log is mostly what a program prints of its steps and what NCCL says of its channels. The lines of a failure stand far
apart in it, and those of all ranks between each other if a launcher collects them.
"""

import random
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from c4bench.bench.figures import note
from c4bench.evidence.collect import collect
from c4bench.evidence.judging.judge import judge
from c4bench.model.measurement import Clock
from c4bench.record import RunDirectory

_SUITE = "logs"
_PER_HOST = 8
FAULTS = ("killed", "unreachable", "behind")
_TIMEOUT = (
    "Watchdog caught collective operation timeout: WorkNCCL(SeqNum={seq}, OpType=ALLREDUCE, NumelIn=8388608, "
    "NumelOut=8388608, Timeout(ms)=600000) ran for 600028 milliseconds before timing out."
)
_STATUS = (
    "[PG ID 0 PG GUID 0(default_pg) Rank {rank}]  failure detected by watchdog at work sequence id: {seq} PG status: "
    "last enqueued work: {enqueued}, last completed work: {completed}"
)


def _host(rank: int) -> str:
    return f"gpu-{rank // _PER_HOST:04}"


def _filler(rank: int, count: int, source: random.Random) -> Iterator[str]:
    """Lines of a healthy rank: its program's, and NCCL's of its channels."""
    head = f"{_host(rank)}:{4000 + rank % _PER_HOST}:{9000 + rank} [{rank % _PER_HOST}] NCCL INFO"
    for step in range(count):
        if step % 16:
            at = f"2026-02-03 04:{step // 60 % 60:02}:{step % 60:02},{source.randrange(1000):03}"
            figures = f"loss {source.random():.6f} grad_norm {source.random():.6f} tokens/s {source.randrange(10**6)}"
            yield f"{at} INFO train.py:311] step {step} {figures}"
        else:
            yield f"{head} Channel {step // 16 % 16:02}/0 : {rank}[{rank % _PER_HOST}] -> {rank + 1}[0] via P2P/CUMEM"


def _failure(fault: str, culprit: int, rank: int, ranks: int) -> Iterator[str]:
    """What a rank prints at the end; that of the culprit shows the fault."""
    seq = 77_001 if fault == "behind" and rank == culprit else 77_002
    silent = fault == "killed" and rank == culprit
    if fault == "killed" and rank == (culprit + _PER_HOST) % ranks:
        yield f"srun: error: {_host(culprit)}: task {culprit}: Killed"
    if fault == "unreachable" and rank % (ranks // 8) == culprit % (ranks // 8):
        near, far = _address(rank), _address(culprit)
        head = f"{_host(rank)}:{4000 + rank % _PER_HOST}:{9000 + rank} [0]"
        yield f"{head} NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [RO]; OOB eno1:{near}<0>"
        if rank != culprit:
            yield (f"{head} transport/net_ib.cc:2543 NCCL WARN NET/IB: Got completion from peer {far}<50631> with "
                   "status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0) reqSize=1048576 vendor_err=129 req_type=Send "
                   f"localGid {near} remoteGids{far} hca mlx5_{rank % _PER_HOST}")  # fmt: skip
    if not silent:
        glog = f"[rank{rank}]:[E203 04:59:{rank % 60:02}.{rank:09} ProcessGroupNCCL.cpp:"
        yield f"{glog}632] [Rank {rank}] {_TIMEOUT.format(seq=seq)}"
        yield f"{glog}2271] {_STATUS.format(rank=rank, seq=seq, enqueued=77_010, completed=seq - 1)}"


def _address(rank: int) -> str:
    return f"2001:db8::{1 + rank:x}"


def write_logs(folder: Path, fault: str, *, ranks: int, bytes_in_all: int, seed: int, mixed: bool) -> str:
    """Write a log for each rank, or one of all with the labels of `srun`; return the component to blame."""
    source = random.Random(seed)
    culprit = source.randrange(ranks)
    lines = max(1, bytes_in_all // ranks // 105)
    if not mixed:
        for rank in range(ranks):
            text = [*_filler(rank, lines, source), *_failure(fault, culprit, rank, ranks)]
            (folder / f"slurm-{rank}.err").write_text("\n".join(text) + "\n")
    else:
        with (folder / "job.err").open("w") as file:
            for rank, healthy in enumerate(_filler(rank, lines, source) for rank in range(ranks)):
                file.writelines(f"{rank}: {line}\n" for line in healthy)
            for rank in source.sample(range(ranks), ranks):
                file.writelines(f"{rank}: {line}\n" for line in _failure(fault, culprit, rank, ranks))
    nic = f"nic {_host(culprit)}/{_address(culprit)}"
    return nic if fault == "unreachable" else f"rank job:{culprit}"


def measure(run: RunDirectory, *, quick: bool) -> None:
    """Read and judge 10,000 ranks' logs of 1 GB (`quick`: 1,000 of 100 MB), as files and as one stream."""
    ranks, size_bytes = (1_000, 100 << 20) if quick else (10_000, 1 << 30)
    for number, fault in enumerate(FAULTS):
        mixed = number % 2 == 1
        with TemporaryDirectory(prefix="c4bench-logs-") as folder:
            truth = write_logs(Path(folder), fault, ranks=ranks, bytes_in_all=size_bytes, seed=number, mixed=mixed)
            began_s, computed_s = time.monotonic(), time.process_time()
            report = judge(collect([Path(folder)]))
            took_s, computed_s = time.monotonic() - began_s, time.process_time() - computed_s
            named = [str(one.diagnosis.component) for one in report.verdicts]
        labels = {"format": "mixed log" if mixed else "logs", "fault": fault, "ranks": ranks}
        note(run, _SUITE, "foreign.read_s", took_s, unit="s", clock=Clock.MACHINE, at_most=60.0, **labels)
        note(run, _SUITE, "foreign.read_cpu_s", computed_s, unit="s", clock=Clock.MACHINE, **labels)
        right = float(named == [truth])
        note(run, _SUITE, "foreign.correct_fraction", right, unit="1", clock=Clock.NONE, at_least=1.0, **labels)
    peak_bytes = float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
    note(run, _SUITE, "foreign.peak_bytes", peak_bytes, unit="B", clock=Clock.MACHINE, at_most=1e9, ranks=ranks)
