"""The agent's CPU and memory cost, measured with a real agent and ranks that only record telemetry."""

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import yaml

from c4bench.bench.figures import note
from c4bench.control.cluster import Cluster
from c4bench.deploy import authority
from c4bench.errors import UnhealthyError
from c4bench.model.agent import AgentConfig
from c4bench.model.fabric import Host, Nic
from c4bench.model.measurement import Clock
from c4bench.model.telemetry import Member
from c4bench.record import RunDirectory
from c4bench.wire.messages import JobSpec

_HOST = "h0"
_RANKS = (1, 8)
_OPERATIONS_PER_S = 100.0
_SECONDS = {False: 60.0, True: 10.0}  # by: is it the quick form?
_WARM_UP_S = 2.0
_WITHIN_S = 30.0
_CPU_AT_MOST = 0.01
_RSS_AT_MOST_BYTES = 60e6


class Cost(msgspec.Struct, frozen=True):
    """`cpu_fraction` of one core used by the agent process; resident memory of agent and spawner together."""

    cpu_fraction: float
    resident_bytes: int


def measure_agent(run: RunDirectory, *, quick: bool) -> None:
    """Measure with one rank and with eight on the host; write the figures into `run`."""

    def write(name: str, value: float, ranks: int, **rest: Any) -> None:  # noqa: ANN401  (as `note` has it)
        note(run, "agent", name, value, clock=Clock.MACHINE, ranks=ranks, operations_per_s=_OPERATIONS_PER_S, **rest)

    for ranks in _RANKS:
        cost = agent_cost(ranks, _SECONDS[quick])
        write("agent.cpu_fraction", cost.cpu_fraction, ranks, at_most=_CPU_AT_MOST)
        write("agent.rss_bytes", cost.resident_bytes, ranks, unit="B", at_most=_RSS_AT_MOST_BYTES)


def agent_cost(ranks: int, seconds: float) -> Cost:
    """Run an agent with `ranks` ranks for `seconds`; read its CPU time and memory from /proc."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
        directory = Path(folder)
        authority.establish(directory, [_HOST], datetime.now(UTC) - timedelta(days=1))
        port = free_port()
        with (
            Cluster([Host(_HOST, "127.0.0.1")], directory, "127.0.0.1", port) as cluster,
            _agent(directory, memory, port) as pid,
        ):
            cluster.wait_hosts([_HOST], _WITHIN_S)
            time.sleep(_WARM_UP_S)
            # Read before any rank starts: ranks are forked from the spawner and share its pages.
            idle_bytes, own_bytes = _combined_bytes(pid, _spawner(pid)), _resident_bytes(pid)
            job = cluster.start(_job(ranks))
            cluster.results(job, "ready", _WITHIN_S)
            time.sleep(_WARM_UP_S)
            before_s, began_s = _cpu_s(pid), time.monotonic()
            time.sleep(seconds)
            fraction = (_cpu_s(pid) - before_s) / (time.monotonic() - began_s)
            return Cost(fraction, idle_bytes + _resident_bytes(pid) - own_bytes)


def _job(ranks: int) -> JobSpec:
    members = tuple(Member(rank, _HOST, (f"{_HOST}/{rank}",)) for rank in range(ranks))
    nics = tuple(Nic(_HOST, rank, f"none{rank}", f"none{rank}", "127.0.0.1", 1e10) for rank in range(ranks))
    return JobSpec("pulse", "pulse", members, nics, {"operations_per_s": _OPERATIONS_PER_S})


@contextmanager
def _agent(directory: Path, memory: str, port: int) -> Iterator[int]:
    """Run an agent process with its state in `directory`; yield its PID."""
    for target, source in (("cert.pem", f"{_HOST}.pem"), ("key.pem", f"{_HOST}.key")):
        (directory / target).write_bytes((directory / source).read_bytes())
    config = AgentConfig(_HOST, "127.0.0.1", str(directory), (), port, state=str(directory), rings=memory)
    path = directory / "agent.yml"
    path.write_text(yaml.safe_dump(msgspec.to_builtins(config)))
    with subprocess.Popen([sys.executable, "-m", "c4bench.agent.main", f"--config={path}"]) as process:
        try:
            yield process.pid
        finally:
            process.terminate()


def free_port() -> int:
    """A TCP port of this machine that nobody uses now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _resident_bytes(pid: int) -> int:
    return sum(size for size, _ in _mappings(pid).values())


def _combined_bytes(pid: int, child: int) -> int:
    """Resident memory of a process and its fork in bytes; shared pages count once.

    Shared anonymous pages date from before the fork. Of each mapped file, the larger resident part counts.
    """
    own, other = _mappings(pid), _mappings(child)
    extra = (
        size - own.get(name, (0, 0))[0] if name.startswith("/") else private for name, (size, private) in other.items()
    )
    return sum(size for size, _ in own.values()) + sum(max(0, more) for more in extra)


def _mappings(pid: int) -> dict[str, tuple[int, int]]:
    """Resident and private bytes by mapping name (`smaps`, proc(5))."""
    mappings: dict[str, tuple[int, int]] = {}
    name = ""
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        words = line.split()
        if not words[0].endswith(":"):
            name = words[5] if len(words) > 5 else ""
        elif words[0] in ("Rss:", "Private_Clean:", "Private_Dirty:"):
            size, private = mappings.get(name, (0, 0))
            kib = int(words[1]) << 10
            mappings[name] = (size + kib, private) if words[0] == "Rss:" else (size, private + kib)
    return mappings


def _spawner(pid: int) -> int:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    if not children:
        raise UnhealthyError(f"the agent (process {pid}) has no spawner")
    return int(children[0])
