"""What the agent costs its host: a real one on this machine, with ranks that record and do nothing else."""

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

from c4bench.bench.notes import note
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
    """`cpu_fraction` of one core that the agent's process took, and the memory resident in it and in its spawner."""

    cpu_fraction: float
    agent_bytes: int
    spawner_bytes: int


def measure_agent(run: RunDirectory, *, quick: bool) -> None:
    """Measure with one rank on the host and with eight; figures go into `run`."""

    def write(name: str, value: float, ranks: int, **rest: Any) -> None:  # noqa: ANN401  (as `note` has it)
        note(run, "agent", name, value, clock=Clock.MACHINE, ranks=ranks, operations_per_s=_OPERATIONS_PER_S, **rest)

    for ranks in _RANKS:
        cost = agent_cost(ranks, _SECONDS[quick])
        write("agent.cpu_fraction", cost.cpu_fraction, ranks, at_most=_CPU_AT_MOST)
        write("agent.rss_bytes", cost.agent_bytes, ranks, unit="B", at_most=_RSS_AT_MOST_BYTES)
        write("agent.spawner_rss_bytes", cost.spawner_bytes, ranks, unit="B")


def agent_cost(ranks: int, seconds: float) -> Cost:
    """Run an agent with so many ranks for a while, and read what the kernel has booked on it."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
        place = Path(folder)
        authority.establish(place, [_HOST], datetime.now(UTC) - timedelta(days=1))
        port = _free_port()
        with (
            Cluster([Host(_HOST, "127.0.0.1")], place, "127.0.0.1", port) as cluster,
            _agent(place, memory, port) as pid,
        ):
            cluster.wait_hosts([_HOST], _WITHIN_S)
            job = cluster.start(_job(ranks))
            cluster.results(job, "ready", _WITHIN_S)
            time.sleep(_WARM_UP_S)
            before_s, began_s = _cpu_s(pid), time.monotonic()
            time.sleep(seconds)
            fraction = (_cpu_s(pid) - before_s) / (time.monotonic() - began_s)
            return Cost(fraction, _resident_bytes(pid), _resident_bytes(_spawner(pid)))


def _job(ranks: int) -> JobSpec:
    members = tuple(Member(rank, _HOST, (f"{_HOST}/{rank}",)) for rank in range(ranks))
    nics = tuple(Nic(_HOST, rank, f"none{rank}", f"none{rank}", "127.0.0.1", 1e10) for rank in range(ranks))
    return JobSpec("pulse", "pulse", members, nics, {"operations_per_s": _OPERATIONS_PER_S})


@contextmanager
def _agent(place: Path, memory: str, port: int) -> Iterator[int]:
    """An agent as a process of its own, with its state in `place`; yields its process number."""
    for target, source in (("cert.pem", f"{_HOST}.pem"), ("key.pem", f"{_HOST}.key")):
        (place / target).write_bytes((place / source).read_bytes())
    config = AgentConfig(_HOST, "127.0.0.1", str(place), (), port, state=str(place), rings=memory)
    path = place / "agent.yml"
    path.write_text(yaml.safe_dump(msgspec.to_builtins(config)))
    with subprocess.Popen([sys.executable, "-m", "c4bench.agent.main", f"--config={path}"]) as process:
        try:
            yield process.pid
        finally:
            process.terminate()


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _spawner(pid: int) -> int:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    if not children:
        raise UnhealthyError(f"the agent (process {pid}) has no spawner")
    return int(children[0])
