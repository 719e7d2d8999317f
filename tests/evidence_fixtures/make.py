"""Make the flight-recorder fixtures with real PyTorch (gloo, CPU), and keep what torchfrtrace says of them.

    PYTHON_WITH_TORCH tests/evidence_fixtures/make.py tests/evidence_fixtures

PyTorch 2.8 or later is needed: older ones do not record gloo's operations. The result is `torch-VERSION.tar.xz`, with a
folder for each case: `rank_N` (pickle), `rank_N.json`, `truth.json` (who does what, written from `CASES` and not from
the dumps) and `torchfrtrace.json` (exit code and output).
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
import traceback
from datetime import timedelta

# name: ranks, culprits (the ranks that behave differently), what is wrong, seconds after which operations time out
CASES = {
    "healthy": (4, [], "", 60),
    "hang_2": (2, [1], "not_entered", 60),
    "hang_4": (4, [2], "not_entered", 60),
    "hang_16": (16, [11], "not_entered", 60),
    "hang_timed_out": (4, [3], "not_entered", 1),
    "hang_first": (4, [0], "not_entered", 60),
    "skip_last": (4, [1], "not_entered", 60),
    "skip_between": (4, [1], "collective_type_mismatch", 60),
    "size": (4, [2], "size_or_syntax_mismatch", 60),
    "size_larger": (4, [2], "size_or_syntax_mismatch", 60),
    "type": (4, [0], "collective_type_mismatch", 60),
    "dtype": (4, [3], "collective_dtype_mismatch", 60),
    "order": (4, [1], "collective_order_mismatch", 60),
    "killed": (4, [2], "no_file", 60),
    "killed_8": (8, [7], "no_file", 60),
    "group": (8, [5], "not_entered", 60),
    "groups_16": (16, [6], "not_entered", 60),
}
STEPS = 5
BAD_STEP = 3
DUMP_AFTER_S = 3.0


def program(case, rank, size, timeout_s):
    """What a rank runs; the culprit departs from it at `BAD_STEP`."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", rank=rank, world_size=size, timeout=timedelta(seconds=timeout_s))
    width = 4 if size == 16 else 2
    rows = [dist.new_group(list(range(at, at + width))) for at in range(0, size, width)]
    columns = [dist.new_group(list(range(at, size, width))) for at in range(width)]
    row, column = rows[rank // width], columns[rank % width]
    bad = rank in CASES[case][1]
    (pathlib.Path(os.environ["FIXTURE_OUT"]) / f"up_{rank}").touch()
    for step in range(STEPS):
        depart(case, bad and step == BAD_STEP, dist, torch)
        one = torch.ones(64)
        if case in {"group", "groups_16"}:
            dist.all_reduce(one, group=row)
            dist.all_reduce(one, group=column)
        elif case == "order":
            groups = (row, dist.group.WORLD)
            for group in reversed(groups) if bad and step == BAD_STEP else groups:
                dist.all_reduce(one, group=group)
        dist.all_reduce(one)
        if not (case == "skip_between" and bad and step == BAD_STEP):
            dist.all_gather([torch.empty(64) for _ in range(size)], one)
        if not (case == "skip_last" and bad and step == STEPS - 1):
            dist.all_reduce(torch.ones(32))


def depart(case, bad, dist, torch):
    """The fault of a culprit."""
    if not bad:
        return
    if case.startswith(("hang", "group")):
        time.sleep(3600)
    elif case.startswith("killed"):
        os.kill(os.getpid(), 9)
    elif case == "size":
        dist.all_reduce(torch.ones(16))
    elif case == "size_larger":
        dist.all_reduce(torch.ones(128))
    elif case == "dtype":
        dist.all_reduce(torch.ones(64, dtype=torch.float64))
    elif case == "type":
        dist.broadcast(torch.ones(64), 0)


def dump(out, rank):
    """Write both forms of this process's flight recorder."""
    import torch

    recorder = torch._C._distributed_c10d
    (out / f"rank_{rank}").write_bytes(recorder._dump_fr_trace())
    (out / f"rank_{rank}.json").write_bytes(bytes(recorder._dump_fr_trace_json()))


def run_rank(case, rank, size, timeout_s):
    """Run a rank; dump some time after all have started, wherever it is then."""
    out = pathlib.Path(os.environ["FIXTURE_OUT"])

    def later():
        while len(list(out.glob("up_*"))) < size:
            time.sleep(0.05)
        time.sleep(DUMP_AFTER_S)
        dump(out, rank)
        os._exit(0)

    threading.Thread(target=later, daemon=True).start()
    try:
        program(case, rank, size, timeout_s)
    except RuntimeError as error:
        sys.stderr.write(f"{case} rank {rank}: {str(error)[:200]}\n")
    time.sleep(60)


def forked(work):
    """Run `work` in a process of its own, which has imported PyTorch already; return its process id."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    try:
        work()
        os._exit(0)
    except SystemExit as end:
        os._exit(end.code if isinstance(end.code, int) else int(bool(end.code)))
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


def make(case, folder):
    """Run a case and keep its files in `folder`."""
    size, culprits, wrong, timeout_s = CASES[case]
    folder.mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        os.environ["MASTER_PORT"] = str(free.getsockname()[1])
    os.environ["FIXTURE_OUT"] = str(folder)
    for pid in [forked(lambda rank=rank: run_rank(case, rank, size, timeout_s)) for rank in range(size)]:
        os.waitpid(pid, 0)
    for marker in folder.glob("up_*"):
        marker.unlink()
    truth = {"ranks": size, "culprits": culprits, "wrong": wrong, "timeout_s": timeout_s}
    (folder / "truth.json").write_text(json.dumps(truth))
    answers = {form: analyse(folder, form) for form in ("pickle", "json")}
    (folder / "torchfrtrace.json").write_text(json.dumps(answers, indent=1))


def analyse(folder, form):
    """What torchfrtrace, which takes a folder of nothing but one form of dumps, says of a case."""
    with tempfile.TemporaryDirectory() as copy, tempfile.NamedTemporaryFile() as output:
        for file in folder.glob("rank_*.json" if form == "json" else "rank_*"):
            if form == "json" or not file.suffix:
                (pathlib.Path(copy) / file.stem).write_bytes(file.read_bytes())
        _, status = os.waitpid(forked(lambda: torchfrtrace(copy, output.fileno())), 0)
        text = pathlib.Path(output.name).read_text(errors="replace").replace(copy, "FOLDER")
        lines = [line for line in text.splitlines() if line.strip()]
        return {"exit_code": os.waitstatus_to_exitcode(status), "output": lines[-40:]}


def torchfrtrace(folder, output):
    """Run the analyser's command line with its output to the file descriptor `output`."""
    os.dup2(output, 1)
    os.dup2(output, 2)
    from torch.distributed.flight_recorder import (
        fr_trace,
    )  # from PyTorch 2.9 on; the command of 2.8 cannot start either

    sys.argv = ["torchfrtrace", "-p", "rank_", folder]
    fr_trace.main()
    sys.stdout.flush()


def owned_by_nobody(member):
    """An archive's member without owner and time."""
    member.mtime = member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def main():
    """Make all cases with this Python's PyTorch."""
    os.environ |= {
        "TORCH_FR_BUFFER_SIZE": "2000",
        "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
        "MASTER_ADDR": "127.0.0.1",
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
    }
    import torch

    version = torch.__version__.partition("+")[0]
    with tempfile.TemporaryDirectory() as scratch:
        top = pathlib.Path(scratch) / f"torch-{version}"
        top.mkdir()
        for case in CASES:
            make(case, top / case)
        with tarfile.open(pathlib.Path(sys.argv[1]) / f"torch-{version}.tar.xz", "w:xz") as archive:
            archive.add(top, top.name, filter=owned_by_nobody)


if __name__ == "__main__":
    main()
