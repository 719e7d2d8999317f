"""Find the process of a rank by the telemetry file that it writes."""

import os
import pwd
from pathlib import Path

import msgspec

from c4bench.agent.config import load
from c4bench.collective.ring_reader import read_owner
from c4bench.errors import UnhealthyError, UsageError
from c4bench.inject.files import open_below
from c4bench.inject.permitted import configuration
from c4bench.inject.privilege import checked_name
from c4bench.model.agent import AgentConfig
from c4bench.model.fault import FaultRequest


class ProcessTarget(msgspec.Struct, frozen=True):
    """A running rank, its two shared files, and its control group.

    `started_ticks` distinguishes it from a later process with the same PID; `user` is the user id it runs as.
    """

    pid: int
    started_ticks: int
    user: int
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
    try:
        descriptor = open_below(Path(places.rings), ring, _ring_owners(places))
    except FileNotFoundError:
        raise UsageError(
            f"rank {rank} of job {job} does not run on {request.host}: there is no {ring}; check job and rank"
        ) from None
    try:
        pid, owner = read_owner(ring, descriptor).pid, os.fstat(descriptor).st_uid
    finally:
        os.close(descriptor)
    started = started_ticks(pid)
    if started is None:
        raise UsageError(
            f"rank {rank} of job {job} on {request.host} has ended: there is no process {pid}; start the job again"
        )
    if user_of(pid) != owner:
        # The ring's writer states the PID; it must not be able to aim a fault at another user's process.
        raise UnhealthyError(f"{ring} names process {pid}, which is another user's; stop job {job}")
    return ProcessTarget(pid, started, owner, ring, places.controls(job, rank), _group(pid))


def rings() -> Path:
    """The folder of this host's telemetry files, with a subfolder for each job."""
    return Path(_agent_config().rings)


def _agent_config() -> AgentConfig:
    path = configuration() / "agent.yml"
    return load(path) if path.exists() else AgentConfig("", "", "")


def _ring_owners(config: AgentConfig) -> set[int]:
    """Who may have made the folder of the rings: root, or the agent's user."""
    try:
        return {0, os.geteuid(), *([pwd.getpwnam(config.user).pw_uid] if config.user else [])}
    except KeyError:
        raise UnhealthyError(f"there is no user {config.user!r} on this host; deploy again") from None


def started_ticks(pid: int) -> int | None:
    """The start time of a process in clock ticks since boot; None if it does not exist or has ended."""
    fields = _stat(pid)
    return int(fields[19]) if fields and fields[0] not in "ZX" else None


def user_of(pid: int) -> int:
    """The user id that a process runs as; -1 if it does not exist."""
    try:
        return Path(f"/proc/{pid}").stat().st_uid
    except (FileNotFoundError, ProcessLookupError):
        return -1


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
