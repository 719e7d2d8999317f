"""Make flight-recorder fixtures of gloo jobs in tensor, pipeline and data groups, whose ranks call without waiting.

    PYTHON_WITH_TORCH tests/evidence_fixtures/make_parallel.py tests/evidence_fixtures

PyTorch 2.11 or later is needed, which can leave out calls that have ended. The result is `parallel-VERSION.tar.xz`,
with a folder for each case: `rank_N` (pickle) and `truth.json`, which is written from `CASES` and not from the dumps.
"""

import json
import os
import pathlib
import socket
import sys
import tarfile
import tempfile
import threading
import time
from datetime import timedelta
from typing import NamedTuple

from make import forked, owned_by_nobody

STEPS, BAD_STEP, LAYERS = 3, 2, 3
DUMP_AFTER_S = 3.0


class Case(NamedTuple):
    """A job of tensor x pipeline x data ranks; each culprit stops before the call of this number of the bad step."""

    tensor: int
    pipeline: int
    data: int
    stops: dict[int, int]
    only_active: bool = False
    timing: bool = False


CASES = {
    "healthy_8": Case(2, 2, 2, {}),
    "one_8": Case(2, 2, 2, {5: 4}),
    "one_8_active": Case(2, 2, 2, {5: 4}, only_active=True),
    "one_8_timing": Case(2, 2, 2, {2: 1}, timing=True),
    "two_16": Case(4, 2, 2, {3: 2, 12: 5}),
    "two_16_active": Case(4, 2, 2, {3: 2, 12: 5}, only_active=True, timing=True),
}


def groups(case):
    """The lists of ranks of tensor, pipeline and data groups, and their descriptions."""
    stage = case.tensor * case.data
    size = stage * case.pipeline
    yield from (("TENSOR", list(range(at, at + case.tensor))) for at in range(0, size, case.tensor))
    yield from (("PIPELINE", list(range(at, size, stage))) for at in range(stage))
    for first in range(0, size, stage):
        yield from (("DATA", list(range(first + at, first + stage, case.tensor))) for at in range(case.tensor))


def program(case, rank, size):
    """What a rank runs: calls that it waits for at the end of a step only. A culprit stops calling in the bad step."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", rank=rank, world_size=size, timeout=timedelta(seconds=60))
    mine = {}
    for name, ranks in groups(case):
        made = dist.new_group(ranks, group_desc=name)
        if rank in ranks:
            mine[name] = made
    (pathlib.Path(os.environ["FIXTURE_OUT"]) / f"up_{rank}").touch()
    for step in range(STEPS):
        calls = [mine["TENSOR"]] * LAYERS + [mine["PIPELINE"]] + [mine["TENSOR"]] * LAYERS + [mine["DATA"]]
        waiting = []
        for number, group in enumerate((*calls, dist.group.WORLD)):
            if step == BAD_STEP and case.stops.get(rank) == number:
                time.sleep(3600)
            waiting.append(dist.all_reduce(torch.ones(64), group=group, async_op=True))
        for work in waiting:
            work.wait()


def run_rank(case, rank, size):
    """Run a rank; dump some time after all have started, wherever it is then."""
    out = pathlib.Path(os.environ["FIXTURE_OUT"])

    def later():
        import torch

        while len(list(out.glob("up_*"))) < size:
            time.sleep(0.05)
        time.sleep(DUMP_AFTER_S)
        dumped = torch._C._distributed_c10d._dump_fr_trace(includeStackTraces=False, onlyActive=case.only_active)
        (out / f"rank_{rank}").write_bytes(dumped)
        os._exit(0)

    threading.Thread(target=later, daemon=True).start()
    program(case, rank, size)
    time.sleep(60)


def make(name, folder):
    """Run a case and keep its files in `folder`."""
    case = CASES[name]
    size = case.tensor * case.pipeline * case.data
    folder.mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        os.environ["MASTER_PORT"] = str(free.getsockname()[1])
    os.environ["FIXTURE_OUT"] = str(folder)
    os.environ["TORCH_NCCL_ENABLE_TIMING"] = str(int(case.timing))
    for pid in [forked(lambda rank=rank: run_rank(case, rank, size)) for rank in range(size)]:
        os.waitpid(pid, 0)
    for marker in folder.glob("up_*"):
        marker.unlink()
    (folder / "truth.json").write_text(json.dumps({"ranks": size, "culprits": sorted(case.stops)}))


def main():
    """Make all cases with this Python's PyTorch."""
    os.environ |= {"TORCH_FR_BUFFER_SIZE": "2000", "MASTER_ADDR": "127.0.0.1",
                   "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}  # fmt: skip
    import torch

    name = f"parallel-{torch.__version__.partition('+')[0]}"
    with tempfile.TemporaryDirectory() as scratch:
        top = pathlib.Path(scratch) / name
        top.mkdir()
        for case in CASES:
            make(case, top / case)
        with tarfile.open(pathlib.Path(sys.argv[1]) / f"{name}.tar.xz", "w:xz") as archive:
            archive.add(top, top.name, filter=owned_by_nobody)


if __name__ == "__main__":
    main()
