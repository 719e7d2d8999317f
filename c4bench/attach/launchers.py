"""Which job and rank a process is, from the environment that its launcher gave it.

A launcher may run inside another one: mpirun in a Slurm job, torchrun under srun. The innermost one numbers the ranks,
and the outermost one has the name that a user knows. All ranks of a job must get the same name, so only what is equal
in all of them goes into it. Slurm's step is not, below mpirun: ranks on other hosts have that of mpirun's daemons.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import NamedTuple

import msgspec

JOB, RANK, SIZE = "C4BENCH_JOB", "C4BENCH_RANK", "C4BENCH_WORLD_SIZE"
RANKS_AT_MOST = 1 << 24
_NAME_AT_MOST = 128
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
# torchrun's run id where a user gives none: the same for all jobs.
_NO_RUN_ID = {"", "none"}


class Identity(msgspec.Struct, frozen=True):
    """What a process is to its launcher.

    `job` is "", and `rank` and `size` are None, where the environment does not say; `launcher` is "" without a rank.
    """

    job: str = ""
    rank: int | None = None
    size: int | None = None
    launcher: str = ""


class _Numbering(NamedTuple):
    """A launcher's variables of a rank and of the number of ranks; it counts only where all of `beside` are set."""

    launcher: str
    rank: str
    sizes: tuple[str, ...]
    beside: tuple[str, ...] = ()


# Innermost first. `RANK` alone is a name that anybody may use; torchrun's has its run id beside it.
_NUMBERINGS = (
    _Numbering("c4bench", RANK, (SIZE,)),
    _Numbering("torchrun", "RANK", ("WORLD_SIZE",), ("TORCHELASTIC_RUN_ID",)),
    _Numbering("openmpi", "OMPI_COMM_WORLD_RANK", ("OMPI_COMM_WORLD_SIZE",)),
    _Numbering("pmi", "PMI_RANK", ("PMI_SIZE",)),
    _Numbering("pmix", "PMIX_RANK", ()),
    _Numbering("slurm", "SLURM_PROCID", ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"), ("SLURM_STEP_ID",)),
    _Numbering("torch", "RANK", ("WORLD_SIZE",), ("WORLD_SIZE",)),
    _Numbering("kubernetes", "JOB_COMPLETION_INDEX", (SIZE,)),
)
_NAMES = (
    JOB,
    "SLURM_JOB_ID",
    "SLURM_JOBID",
    "SLURM_STEP_ID",
    "PMIX_NAMESPACE",
    "PMI_JOBID",
    "TORCHELASTIC_RUN_ID",
    "MASTER_ADDR",
    "MASTER_PORT",
)
# What distinguishes the launches of these.
_LAUNCHES = {"openmpi": "PMIX_NAMESPACE", "pmix": "PMIX_NAMESPACE", "pmi": "PMI_JOBID"}
# All that `identify` reads.
VARIABLES = tuple(
    dict.fromkeys([*_NAMES, *(name for known in _NUMBERINGS for name in (known.rank, *known.sizes, *known.beside))])
)


def identify(environment: Mapping[str, str]) -> Identity:
    """The job and the rank of a process with this environment. Numbers that make no sense count as not given."""
    for known in _NUMBERINGS:
        rank = _number(environment.get(known.rank, ""))
        if rank is None or not all(environment.get(name) for name in known.beside):
            continue
        size = next((found for name in known.sizes if (found := _number(environment.get(name, "")))), None)
        if size is None or rank < size:
            return Identity(_job(environment, known.launcher), rank, size, known.launcher)
    return Identity(_job(environment, ""))


_MPI = re.compile(r"(mpirun|mpiexec|orterun|prterun)([._].+|\d+)?")
_OPEN_MPI = re.compile(r"Open MPI|OpenRTE|PRRTE|prte")
_ENV_LIST = "mca_base_env_list"


def is_mpi(words: tuple[str, ...]) -> bool:
    """Whether a command is mpirun, by one of its names."""
    return _MPI.fullmatch(PurePath(words[0]).name) is not None


def is_launcher(words: tuple[str, ...]) -> bool:
    """Whether a command starts ranks itself: mpirun, or srun."""
    return PurePath(words[0]).name == "srun" or is_mpi(words)


def is_open_mpi(words: tuple[str, ...], version: str) -> bool:
    """Whether a launcher is Open MPI's, which passes variables on only by `-x`; `version` is what `--version` prints.

    It refuses `-x` beside a list of variables (`mca_base_env_list`), so that a command which has one is none of these.
    """
    listed = any(_ENV_LIST in word for word in words)
    return is_mpi(words) and not listed and _OPEN_MPI.search(version) is not None


def exporting(words: tuple[str, ...], variables: Mapping[str, str]) -> tuple[str, ...]:
    """Open MPI's words with those by which its ranks get the variables; it and its daemons need none of them."""
    return (words[0], *(word for name, value in variables.items() for word in ("-x", f"{name}={value}")), *words[1:])


def safe_name(text: str) -> str:
    """A job's name of at most 128 letters, digits, `.`, `_` and `-`, which may be part of a file's name."""
    return _UNSAFE.sub("-", text).strip(".-")[:_NAME_AT_MOST]


def _job(environment: Mapping[str, str], launcher: str) -> str:
    if given := safe_name(environment.get(JOB, "")):
        return given
    return safe_name("-".join(_parts(environment, launcher)))


def _parts(environment: Mapping[str, str], launcher: str) -> Iterator[str]:
    """The job of the scheduler, and what tells apart the launches within it."""
    allocation = environment.get("SLURM_JOB_ID") or environment.get("SLURM_JOBID", "")
    if allocation:
        yield f"slurm-{allocation}"
    if launcher == "torchrun":
        yield from _torchrun(environment)
    elif launcher in _LAUNCHES and (launch := environment.get(_LAUNCHES[launcher])):
        own = launch.removeprefix(f"slurm.pmix.{allocation}.").removeprefix(f"{allocation}.")
        yield own if own != launch else f"mpi-{launch}"  # Slurm's own PMIs name its job and step
    elif launcher == "slurm":
        yield environment["SLURM_STEP_ID"]


def _torchrun(environment: Mapping[str, str]) -> Iterator[str]:
    run_id = environment["TORCHELASTIC_RUN_ID"]
    if run_id not in _NO_RUN_ID:
        yield f"torchrun-{run_id}"
    elif address := environment.get("MASTER_ADDR"):
        yield f"torchrun-{address}-{environment.get('MASTER_PORT', '')}"


def _number(text: str) -> int | None:
    """A number of a rank or of ranks; None for anything else."""
    if not text.isascii() or not text.isdigit() or len(text) > len(str(RANKS_AT_MOST)):
        return None
    number = int(text)
    return number if number <= RANKS_AT_MOST else None
