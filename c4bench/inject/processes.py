"""Find the process of a rank by the telemetry file that it writes, and act on that process only."""

import os
import pwd
import select
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from c4bench.agent.config import load
from c4bench.collective.ring_reader import TelemetrySnapshot, read_owner, read_telemetry
from c4bench.errors import UnhealthyError, UsageError
from c4bench.inject import files
from c4bench.inject.permitted import configuration
from c4bench.inject.privilege import checked_name
from c4bench.model.agent import AgentConfig
from c4bench.model.fault import FaultRequest
from c4bench.workload.controls import ControlsFile


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
    """The process of the request's rank.

    Raises UsageError when no such rank runs here, UnhealthyError for one that must not be acted on.
    """
    job, rank = request.process
    checked_name("job", job)
    places = _agent_config()
    ring = places.ring(job, rank)
    try:
        descriptor = _open(ring, places)
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
    # The ring's writer states the PID; it must not be able to aim a fault at another user's process.
    try:
        with opened(pid, started, owner):
            return ProcessTarget(pid, started, owner, ring, places.controls(job, rank), _group(pid))
    except UnhealthyError as error:
        raise UnhealthyError(f"{ring} names process {pid}: {error}; stop job {job}") from None


@contextmanager
def opened(pid: int, ticks: int, user: int) -> Iterator[int]:
    """A descriptor of process `pid`, if it still is the one that began `ticks` after boot, and still `user`'s.

    Every action on a process begins here. The number is this process's while the process `lives`. Raises UnhealthyError
    for another process, for one that has ended, and for the number of a thread.
    """
    try:
        descriptor = os.pidfd_open(pid)
    except (OSError, OverflowError):
        what = f"{pid} is a thread" if thread_of_another(pid) else f"process {pid} has ended"
        raise UnhealthyError(what) from None
    try:
        if started_ticks(pid) != ticks:
            raise UnhealthyError(f"process {pid} has ended")
        if user_of(pid) != user:
            raise UnhealthyError(f"process {pid} is another user's")
        yield descriptor
    finally:
        os.close(descriptor)


def lives(descriptor: int) -> bool:
    """Whether the process of this descriptor lives, and so still has its number."""
    return not select.select([descriptor], [], [], 0)[0]


def signal_to(pid: int, ticks: int, user: int, number: int) -> None:
    """Send a signal to a process (see `opened`). Raises UnhealthyError when that process has ended."""
    with opened(pid, ticks, user) as descriptor:
        try:
            signal.pidfd_send_signal(descriptor, number)
        except OSError as error:
            raise UnhealthyError(f"process {pid} does not take the signal: {error.strerror}") from None


def thread_of_another(pid: int) -> bool:
    """Whether the number is that of a thread which is not its process's first."""
    with suppress(OSError):
        lines = Path(f"/proc/{pid}/status").read_bytes().splitlines()
        return any(line.startswith(b"Tgid:") and int(line.split()[1]) != pid for line in lines)
    return False


def telemetry(ring: Path) -> TelemetrySnapshot:
    """What a rank's telemetry file tells. Raises UsageError for one that is missing or damaged."""
    try:
        descriptor = _open(ring, _agent_config())
    except FileNotFoundError:
        raise UsageError(f"there is no {ring}; its job has ended") from None
    try:
        return read_telemetry(ring, descriptor)
    finally:
        os.close(descriptor)


def open_controls(path: Path, access: int = os.O_RDONLY) -> int:
    """A descriptor of a rank's controls. Raises UsageError when no such rank runs here."""
    try:
        return files.open_below(path.parents[1], path, _owners(_agent_config()), access)
    except (FileNotFoundError, UnhealthyError) as error:
        raise UsageError(f"{path}: no such rank is running here ({error})") from None


def open_gpu_links(access: int = os.O_RDONLY) -> tuple[int, Path]:
    """A descriptor of the links between this host's GPUs, and their path. Raises UsageError without such a rank."""
    places = _agent_config()
    path = places.gpu_links
    try:
        return files.open_below(path.parent, path, _owners(places), access), path
    except (FileNotFoundError, UnhealthyError) as error:
        raise UsageError(f"{path}: no rank with a GPU of its own runs here ({error})") from None


def compute_factor(target: ProcessTarget) -> float:
    """By how much the rank's computing is slowed down now. Raises UsageError when no such rank runs here."""
    descriptor = open_controls(target.controls)
    try:
        return ControlsFile(descriptor, target.controls).read("compute_factor")
    finally:
        os.close(descriptor)


def ring_path(job: str, name: str) -> Path:
    """The telemetry file of that name (see `ranks_here`)."""
    return Path(_agent_config().rings) / job / name


def ranks_here() -> dict[str, list[str]]:
    """The names of the telemetry files on this host, by job."""
    places = _agent_config()
    root, owners = Path(places.rings), _owners(places)
    found = {}
    for job in files.names_below(root, root, owners):
        with suppress(UnhealthyError):  # not a folder
            found[job] = files.names_below(root, root / job, owners)
    return found


def _open(ring: Path, places: AgentConfig) -> int:
    return files.open_below(Path(places.rings), ring, _owners(places))


def _agent_config() -> AgentConfig:
    path = configuration() / "agent.yml"
    return load(path) if path.exists() else AgentConfig("", "", "")


def _owners(config: AgentConfig) -> set[int]:
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
    except OSError:
        return -1


def state(pid: int) -> str:
    """The letter of its state as in proc(5); `X` if it does not exist."""
    fields = _stat(pid)
    return fields[0] if fields else "X"


def _group(pid: int) -> str:
    """Its control group; "/" where it has ended."""
    lines = _read(f"/proc/{pid}/cgroup").splitlines()
    return next((line.removeprefix("0::") for line in lines if line.startswith("0::")), "/")


def _stat(pid: int) -> list[str]:
    return _read(f"/proc/{pid}/stat").rpartition(")")[2].split()


def _read(path: str) -> str:
    """A file of /proc, in which a process's own name may be any bytes; "" where the process has ended."""
    with suppress(OSError):
        return Path(path).read_bytes().decode(errors="surrogateescape")
    return ""
