"""Find the process of a rank by the telemetry file that it writes."""

from pathlib import Path

import msgspec

from c4bench.agent.config import load
from c4bench.collective.ring_reader import read_owner
from c4bench.errors import UnhealthyError, UsageError
from c4bench.inject.privilege import checked_name
from c4bench.model.agent import AgentConfig
from c4bench.model.fault import FaultRequest

AGENT_CONFIG = Path("/etc/c4bench/agent.yml")


class ProcessTarget(msgspec.Struct, frozen=True):
    """A running rank, its two shared files, and its control group.

    `started_ticks` distinguishes it from a later process with the same PID.
    """

    pid: int
    started_ticks: int
    ring: Path
    controls: Path
    group: str = "/"

    @property
    def listing(self) -> dict[str, str]:
        """Empty: no setting outlives a fault."""
        return {}


def find(request: FaultRequest) -> ProcessTarget:
    """The process of the request's rank. Raises UsageError when no such rank runs here."""
    job, rank = request.process
    checked_name("job", job)
    places = _agent_config()
    ring = places.ring(job, rank)
    if not ring.exists():
        raise UsageError(
            f"rank {rank} of job {job} does not run on {request.host}: there is no {ring}; check job and rank"
        )
    pid = read_owner(ring).pid
    started = started_ticks(pid)
    if started is None:
        raise UsageError(
            f"rank {rank} of job {job} on {request.host} has ended: there is no process {pid}; start the job again"
        )
    if ring.stat().st_uid != Path(f"/proc/{pid}").stat().st_uid:
        # The ring's writer states the PID; it must not be able to aim a fault at another user's process.
        raise UnhealthyError(f"{ring} names process {pid}, which is another user's; stop job {job}")
    return ProcessTarget(pid, started, ring, places.controls(job, rank), _group(pid))


def rings() -> Path:
    """The folder of this host's telemetry files, with a subfolder for each job."""
    return Path(_agent_config().rings)


def _agent_config() -> AgentConfig:
    return load(AGENT_CONFIG) if AGENT_CONFIG.exists() else AgentConfig("", "", "")


def started_ticks(pid: int) -> int | None:
    """The start time of a process in clock ticks since boot; None if it does not exist or has ended."""
    fields = _stat(pid)
    return int(fields[19]) if fields and fields[0] not in "ZX" else None


def state(pid: int) -> str:
    """The letter of its state as in proc(5); `X` if it does not exist."""
    fields = _stat(pid)
    return fields[0] if fields else "X"


def _group(pid: int) -> str:
    lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    return next((line.removeprefix("0::") for line in lines if line.startswith("0::")), "/")


def _stat(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []
