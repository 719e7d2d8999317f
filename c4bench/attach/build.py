"""The libraries that are preloaded into programs of others: compiled by set-up, for this Python's environment.

They lie in the environment, so that a lab sees them under the same path on every machine. A library's name has a digest
of what it was compiled from: one of other sources counts as missing.

The library for RDMA programs has a second form, which stands in libibverbs' place. It exports what it replaces, and has
the real one, by its path, as its dependency; ld.so and dlvsym find everything else there. It must define all versions
that the real one has: programs and drivers ask for them by the name of the library.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from c4bench.errors import UnhealthyError

_NATIVE = Path(__file__).with_name("native")
# By library: its sources. `lab` lets programs that wait without sleeping move a lab's virtual time; `nccl` is NCCL's
# profiler plugin, `mpi` wraps MPI's collectives. `failover` stands before `verbs`, which watches both NICs of a pair.
_VERBS = (
    "real.c",
    "say.c",
    "table.c",
    "slot.c",
    "record_file.c",
    "telemetry_file.c",
    "ring.c",
    "bias.c",
    "device.c",
    "qp.c",
    "publish.c",
    "traffic.c",
    "hooks.c",
    "extended.c",
    "requests.c",
    "agent.c",
    "modify.c",
    "move.c",
    "stash.c",
)
_FAILOVER = (
    "real.c",
    "say.c",
    "table.c",
    "bias.c",
    "lookup.c",
    *(
        f"failover/{name}.c"
        for name in ("nics", "memory", "queues", "pools", "kept", "pairs", "post", "complete", "writer")
    ),
    *(f"failover/{name}.c" for name in ("fence", "balance", "standby", "stall", "relay", "keeper")),
    *(f"failover/{name}.c" for name in ("events", "replaced")),
)
LIBRARIES = {
    "verbs": (*_VERBS, "lookup.c", "preloaded.c"),
    "failover": _FAILOVER,
    "lab": ("real.c", "lab/idle.c", "lab/spins.c"),
    "nccl": ("nccl_profiler.c", "telemetry_file.c", "record_file.c", "slot.c", "say.c"),
    "mpi": ("mpi.c", "telemetry_file.c", "record_file.c", "slot.c", "say.c"),
}
# Without a stack protector, so that dlsym ends in a tail call (lookup.c); without vector registers, whose wide loads
# wait for counters that were just stored (Intel's optimization manual, "Store Forwarding"). Functions begin at cache
# lines, so that what one costs does not depend on what stands before it.
_COMPILER = (
    *("gcc", "-std=c11", "-D_DEFAULT_SOURCE", "-O3", "-flto", "-mgeneral-regs-only", "-fno-stack-protector"),
    *("-falign-functions=64", "-fPIC", "-shared"),
)
_WARNINGS = ("-Wall", "-Wextra", "-Werror")
_LIBIBVERBS, _REAL = "libibverbs.so.1", "real"
_REPLACED = ("ibv_open_device", "ibv_close_device", "ibv_modify_qp", "ibv_destroy_qp", "ibv_destroy_cq")
_REPLACED_AT = "IBVERBS_1.1"
_FOR_OTHERS = "c4bench_attach_process"  # which the libraries for MPI and NCCL call
_VERSION = re.compile(r"^\d+ 0x00 0x[0-9a-f]+ (\S+)", re.MULTILINE)
_DIGITS = 12
_PLACE = Path(sys.prefix, "lib", "c4bench")
_VIRTUAL_TIME = "time-travel=inf-cpu"  # on the command line of a lab's kernel


def library(name: str) -> Path:
    """The built library of this name. Raises UnhealthyError where set-up has not built it."""
    path = _path(name)
    if not path.exists():
        raise UnhealthyError(f"the library that programs get preloaded ({name}) is not built: run `c4bench setup`")
    return path


def libraries(*, verbs: bool = True, failover: bool = False) -> tuple[Path, ...]:
    """What a program gets preloaded here, in this order; without `verbs` that is in libibverbs' place.

    With `failover` its connections go on at another NIC when theirs fails.

    Raises UnhealthyError where set-up has not built it.
    """
    chosen = {"lab": in_virtual_time(), "failover": failover, "verbs": verbs, "mpi": True}
    names = [name for name, wanted in chosen.items() if wanted]
    return tuple(map(library, names))


def in_place() -> Path:
    """The library that stands in libibverbs' place. Raises UnhealthyError where set-up has not built it."""
    folder = _folder_in_place()
    if not (folder / _REAL).exists():
        raise UnhealthyError(
            "the library in libibverbs' place is not built for the libibverbs here: run `c4bench setup`"
        )
    return folder / _LIBIBVERBS


def profiler() -> Path:
    """NCCL's profiler plugin. Raises UnhealthyError where set-up has not built it."""
    return library("nccl")


def for_hosts() -> dict[str, Path]:
    """What an agent's host needs to attach programs, of what is built here, by its path below an environment."""
    libraries = (_path(name) for name in LIBRARIES if name != "lab")
    in_its_place = sorted(_folder_in_place().glob("*"))
    found = (*(path for path in libraries if path.exists()), *in_its_place)
    return {str(path.relative_to(sys.prefix)): path for path in found}


def in_virtual_time() -> bool:
    """Whether this process runs in a lab whose clock moves only while processes sleep."""
    return _VIRTUAL_TIME in Path("/proc/cmdline").read_text().split()


def build() -> tuple[Path, ...]:
    """Compile the libraries that are missing; returns all. Raises UnhealthyError with the compiler's first error."""
    for name in LIBRARIES:
        if not _path(name).exists():
            _compile(name, _path(name))
    folder = _folder_in_place()
    if not (folder / _REAL).exists():
        unfinished = folder.with_name(f"{folder.name}.{os.getpid()}")
        build_in_place(_real_verbs(), unfinished)
        for other in _PLACE.glob("in-place-" + "?" * _DIGITS):
            shutil.rmtree(other)
        unfinished.rename(folder)
    return tuple(map(_path, LIBRARIES))


def build_in_place(real: Path, folder: Path) -> None:
    """Compile the library that stands in the place of the libibverbs at the path `real` into a new folder.

    Raises UnhealthyError with the compiler's first error.
    """
    folder.mkdir(parents=True)
    nodes = [f"{name} {{}};\n" for name in _versions(real) if name != _REPLACED_AT]
    exported = f"{_REPLACED_AT} {{ global: {'; '.join(_REPLACED)}; {_FOR_OTHERS}; local: *; }};\n"
    with tempfile.TemporaryDirectory() as scratch:
        dependency, script, empty = (Path(scratch, name) for name in ("dependency.so", "script.map", "empty.c"))
        script.write_text("".join((*nodes, exported)))
        empty.write_text("")
        _run("in-place", ["gcc", "-shared", f"-Wl,-soname,{real}", "-o", str(dependency), str(empty)])
        named = (f'-DREAL_VERBS="{real}"', f"-Wl,-soname,{_LIBIBVERBS}", f"-Wl,--version-script={script}")
        linked = (*_VERBS, "in_place.c", "-Wl,--no-as-needed", str(dependency))
        _run("in-place", [*_COMPILER, *_WARNINGS, *named, "-o", str(folder / _LIBIBVERBS), *linked])
    (folder / _LIBIBVERBS.removesuffix(".1")).symlink_to(_LIBIBVERBS)
    (folder / _REAL).symlink_to(real.resolve())  # leads nowhere once there is another version


def _real_verbs() -> Path:
    """The path of libibverbs, which stays when its version changes. Raises UnhealthyError where there is none."""
    path = Path(os.path.normpath(_run("in-place", ["gcc", f"-print-file-name={_LIBIBVERBS}"]).strip()))
    if not path.is_absolute():
        raise UnhealthyError(f"there is no {_LIBIBVERBS} here; install libibverbs-dev")
    return path


def _versions(library: Path) -> list[str]:
    """The versions that a library's symbols have, as objdump lists them."""
    return _VERSION.findall(_run("in-place", ["objdump", "-p", str(library)]))


def _folder_in_place() -> Path:
    return _PLACE / f"in-place-{_digest()}"


def _compile(name: str, path: Path) -> None:
    unfinished = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _run(name, [*_COMPILER, *_WARNINGS, "-o", str(unfinished), *LIBRARIES[name]])
        unfinished.rename(path)
    except OSError as error:
        raise UnhealthyError(f"{path}: {error.strerror}; install gcc, and c4bench into a virtual environment") from None
    for other in path.parent.glob(f"{name}-*.so"):
        if other != path:
            other.unlink(missing_ok=True)


def _run(name: str, argv: Sequence[str]) -> str:
    """The output of a step that makes a library. Raises UnhealthyError with its first error."""
    try:
        done = subprocess.run(argv, cwd=_NATIVE, capture_output=True, text=True, check=False)
    except OSError as error:
        raise UnhealthyError(f"{argv[0]}: {error.strerror}; install gcc and libibverbs-dev") from None
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if "error" in line] or [f"exit code {done.returncode}"]
        raise UnhealthyError(f"{argv[0]} does not make {name}: {said[0]}; install gcc and libibverbs-dev")
    return done.stdout


def _path(name: str) -> Path:
    return _PLACE / f"{name}-{_digest()}.so"


def _digest() -> str:
    """A digest of all sources and of how they are compiled."""
    digest = hashlib.sha256(" ".join((*_COMPILER, *_WARNINGS)).encode())
    for path in sorted(_NATIVE.rglob("*.[ch]")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:_DIGITS]
