"""`JOB.yml`: a job, as `c4bench job start` and `c4bench workload run` take it."""

from pathlib import Path
from typing import Annotated, Any

import msgspec

from c4bench.decoding import DecodingError, from_yaml
from c4bench.errors import UsageError
from c4bench.model.fabric import Host
from c4bench.model.steering import Policy
from c4bench.wire.messages import JobSpec, LaunchJob, Meeting
from c4bench.workload import programs
from c4bench.workload.jobs import gpu_job, job, place


class JobFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`JOB.yml`. Ranks are placed on `hosts` of the inventory (default: all but the `spares`), neighbours far apart.

    `ranks` is how many of these hosts, from the first on, have a rank (default: all); a host named twice has two. With
    `ranks_per_host`, which divides a host's GPUs, each of them has so many, with a GPU each. Ranks may wait for those
    of other jobs in the same `meeting`.
    """

    name: str
    program: str = "learning"
    hosts: tuple[str, ...] = ()
    ranks: Annotated[int, msgspec.Meta(ge=0)] = 0
    ranks_per_host: Annotated[int, msgspec.Meta(ge=0)] = 0
    spares: tuple[str, ...] = ()
    policy: Policy = Policy()
    parameters: dict[str, Any] = {}
    seed: int = 0
    meeting: Meeting | None = None


def read(path: Path, hosts: tuple[Host, ...]) -> LaunchJob:
    """The launch that JOB.yml describes. Raises UsageError that names the file and the problem."""
    try:
        job_file = from_yaml(path.read_bytes(), JobFile)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; give a file that can be read") from None
    except DecodingError as error:
        raise UsageError(f"{path}: {error}") from None
    known = {host.name: host for host in hosts}
    names = job_file.hosts or tuple(name for name in known if name not in job_file.spares)
    if unknown := sorted({*names, *job_file.spares} - known.keys()):
        raise UsageError(f"{path}: no host {unknown[0]!r} in the inventory; there are {', '.join(known)}")
    if job_file.ranks > len(names):
        raise UsageError(f"{path}: ranks is {job_file.ranks}, but there are {len(names)} hosts for them")
    try:
        programs.check(job_file.program, job_file.parameters)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None
    used = place([known[name] for name in names[: job_file.ranks or None]])
    spec = _spec(path, job_file, used)
    spec = msgspec.structs.replace(spec, meeting=job_file.meeting)
    return LaunchJob(spec, job_file.policy, tuple(known[name] for name in job_file.spares))


def _spec(path: Path, job_file: JobFile, hosts: list[Host]) -> JobSpec:
    name, program, seed, parameters = job_file.name, job_file.program, job_file.seed, job_file.parameters
    if not job_file.ranks_per_host:
        return job(name, program, hosts, seed=seed, **parameters)
    try:
        return gpu_job(name, program, hosts, job_file.ranks_per_host, seed=seed, **parameters)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None
