"""Make fixtures with real PyTorch on NCCL: flight recorder dumps, RAS reports, Inspector logs, Kineto traces.

    PYTHON_WITH_TORCH tests/evidence_fixtures/make_nccl.py OUT [--inspector PLUGIN.so] [--cases NAME,...] [--seconds N]

One GPU is enough: each rank tells NCCL that it is on a host of its own, and they meet over loopback. The result is
`OUT/nccl-VERSION.tar.xz`, of the NCCL that runs: the wheel's, or another that `LD_PRELOAD` names. It has a folder for
each case of `nccl_programs.py`: `rank_N` (pickle) and `rank_N.json`, RAS's answers, `truth.json` (from `CASES` and not
from the files), `observed.json` (how each rank ended), `torchfrtrace.json`. `OUT/logs` keeps what ranks printed. A case
that fails, takes too long or is not started in time is noted in `cases.json` and stops no other; the exit code is 1
then. 26 of the 36 cases took 142 s on 16 cores.
`--backend gloo` tries the script itself where there is no GPU.
"""

import argparse
import contextlib
import ctypes
import json
import os
import pathlib
import re
import signal
import socket
import sys
import tarfile
import tempfile
import time

from make import forked, owned_by_nobody
from nccl_job import COLLECT_S, Job, say
from nccl_programs import CASES

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_SOCKET_FAMILY": "AF_INET",
    "NCCL_NET": "Socket",
    "NCCL_NET_PLUGIN": "none",
    "NCCL_IB_DISABLE": "1",
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_MNNVL_ENABLE": "0",
    "NCCL_CUMEM_ENABLE": "0",
    "NCCL_CUMEM_HOST_ENABLE": "0",
    "NCCL_MAX_NCHANNELS": "1",
    "NCCL_NCHANNELS_PER_NET_PEER": "1",
    "NCCL_DEBUG": "WARN",
    "TORCH_FR_BUFFER_SIZE": "2000",
    "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
    "TORCH_FR_DUMP_ON_TIMEOUT": "1",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
}


def run_all(names, top, options):
    """Run cases side by side; return how each ended."""
    results, running, waiting = {}, {}, list(names)
    last_start = options.until - 2 * COLLECT_S
    while waiting or running:
        busy = sum(CASES[name].ranks for name, _ in running.values())
        if waiting and time.monotonic() < last_start and busy + CASES[waiting[0]].ranks <= options.ranks_at_once:
            name = waiting.pop(0)
            job = Job(name, list(CASES).index(name), top, options)
            running[forked(lambda job=job: (os.setpgid(0, 0), job.run()))] = (name, time.monotonic())
            say(f"{name}: started")
            continue
        if time.monotonic() > last_start:
            results |= dict.fromkeys(waiting, "not started in time")
            waiting = []
        time.sleep(0.2)
        for pid, (name, began) in list(running.items()):
            late = time.monotonic() > options.until
            if late:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
            found, status = os.waitpid(pid, 0 if late else os.WNOHANG)
            if found:
                took_s = time.monotonic() - began
                code = os.waitstatus_to_exitcode(status)
                results[name] = "took too long" if late else "ok" if not code else f"failed: exit {code}"
                say(f"{name}: {results[name]} after {took_s:.0f} s")
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
                del running[pid]
    return results


def without_host_names(top):
    """Replace this machine's name, where it is a word, in all files that are text, and in their names."""
    word = re.compile(rf"(?<![A-Za-z0-9_]){re.escape(socket.gethostname())}(?![A-Za-z0-9_])")
    for path in [path for path in top.rglob("*") if path.is_file()]:
        data = path.read_bytes()
        if b"\0" not in data[:4096]:
            path.write_bytes(re.sub(word.pattern.encode(), b"node0", data))
        path.rename(path.with_name(word.sub("node0", path.name)))


def running_version():
    """The version of the NCCL that is loaded; PyTorch tells that with which it was built."""
    found = ctypes.c_int()
    ctypes.CDLL("libnccl.so.2").ncclGetVersion(ctypes.byref(found))
    return f"{found.value // 10_000}.{found.value // 100 % 100}.{found.value % 100}"


def main():
    """Make the cases with this Python's PyTorch."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out")
    parser.add_argument("--inspector", default="", help="libnccl-profiler-inspector.so, built from NCCL's source")
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--seconds", type=float, default=330, help="after which no case runs any more")
    parser.add_argument("--backend", default="nccl", choices=["nccl", "gloo"])
    parser.add_argument("--ranks-at-once", type=int, default=24)
    parser.add_argument("--port", type=int, default=21_000, help="first of RAS's, of which each case has 16")
    parser.add_argument("--verbose", action="store_true", help="NCCL_DEBUG=INFO")
    options = parser.parse_args()
    names = [name for name in options.cases.split(",") if options.inspector or CASES[name].program != "logged"]
    (pathlib.Path(options.out) / "logs").mkdir(parents=True, exist_ok=True)
    os.environ |= ENVIRONMENT
    import torch

    options.until = time.monotonic() + options.seconds
    version = running_version() if options.backend == "nccl" else torch.__version__.partition("+")[0]
    say(f"PyTorch {torch.__version__}, {options.backend} {version}")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        top = pathlib.Path(scratch) / f"{options.backend}-{version}"
        top.mkdir()
        results = run_all(names, top, options)
        (top / "cases.json").write_text(json.dumps({"pytorch": torch.__version__, "results": results}, indent=1))
        without_host_names(top)
        with tarfile.open(pathlib.Path(options.out) / f"{top.name}.tar.xz", "w:xz") as archive:
            archive.add(top, top.name, filter=owned_by_nobody)
    not_made = sorted(name for name, result in results.items() if result != "ok")
    say(f"not made: {', '.join(not_made) or 'none'}")
    return 1 if not_made else 0


if __name__ == "__main__":
    sys.exit(main())
