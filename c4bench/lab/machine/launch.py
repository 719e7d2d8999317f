"""Start a lab that runs a given command on a given fabric with a given seed."""

import compileall
import datetime
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import c4bench
from c4bench.lab.machine import containment, modes, packages, programs
from c4bench.lab.machine.kernel import Kernel, require
from c4bench.lab.machine.run import LabRun, memory_directory, require_open_files, run
from c4bench.lab.places import CODE, ENVIRONMENT, RUN, Place, inside
from c4bench.lab.spec import LabSpec
from c4bench.lab.topology import Topology

LAB_DIRECTORY = "lab"  # inside the run directory
_CERTIFICATES_FROM = datetime.datetime(2025, 12, 31, tzinfo=datetime.UTC)  # a day before the lab's clock starts
_PASSED_ON = ("TERM", "COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "PY_COLORS", "PYTHONWARNINGS")


def launch(
    topology: Topology,
    command: Sequence[str],
    directory: Path,
    *,
    seed: int,
    virtual: bool = True,
    agents: bool = True,
    interactive: bool = False,
    limit_s: float = 3600.0,
    kernel: Kernel | None = None,
) -> LabRun:
    """Run `command` in a fresh lab, in this working directory; only `directory` can be written to.

    The machine's paths in the command's words are replaced by the lab's. Without `kernel`, the one that set-up has
    built is used. Raises UnhealthyError when there is none, the fabric's programs are missing, or the lab does not come
    up or had to be ended.
    """
    program = kernel or require()
    require_machine(len(topology.hosts))
    # The lab keeps no compiled files: without this every process would compile the modules again.
    compileall.compile_dir(Path(c4bench.__file__).parent, quiet=2)
    home = directory.resolve() / LAB_DIRECTORY
    home.mkdir(parents=True, exist_ok=True)
    trust = trust_directory(directory)
    places = _places(directory.resolve())
    lldp_client = programs.furnish(topology, home)
    spec = LabSpec(
        topology=topology,
        places=places,
        python=inside(sys.executable, places),
        command=tuple(inside(word, places) for word in command),
        directory=inside(str(Path.cwd()), places),
        environment={name: inside(value, places) for name, value in _environment(seed).items()},
        trust=inside(str(trust), places),
        agents=agents,
        seed=seed,
        interactive=interactive,
        lldp_client=inside(lldp_client, places),
    )
    with containment.unwinding(), _certificates(trust, topology):
        return run(program, spec, home, virtual=virtual, limit_s=limit_s)


@contextmanager
def _certificates(trust: Path, topology: Topology) -> Iterator[None]:
    """Certificates of the lab's hosts in `trust`; nobody needs their keys after the lab."""
    from c4bench.deploy import authority  # noqa: PLC0415  (cryptography, which runs on real hosts do without)

    try:
        authority.establish(trust, [host.name for host in topology.hosts], _CERTIFICATES_FROM)
        yield
    finally:
        shutil.rmtree(trust, ignore_errors=True)


def require_machine(hosts: int) -> None:
    """Raises UnhealthyError if a lab of so many hosts cannot run here for any reason but its kernel."""
    require_open_files(hosts)
    containment.wrap([])
    modes.lab_mode()
    memory_directory()
    packages.require_pyverbs()


def trust_directory(directory: Path) -> Path:
    """The folder of the certificates of a lab that runs in `directory`."""
    return directory.resolve() / LAB_DIRECTORY / "trust"


def _places(run_directory: Path) -> tuple[Place, ...]:
    """The run directory, our virtual environment if we are in one, and our checkout if we are not installed there."""
    code = Path(c4bench.__file__).parents[1]
    shown = [Place(str(run_directory), RUN, writable=True)]
    if sys.prefix != sys.base_prefix:
        shown.append(Place(sys.prefix, ENVIRONMENT))
    if not code.is_relative_to(sys.prefix):
        shown.append(Place(str(code), CODE))
    return tuple(shown)


def _environment(seed: int) -> dict[str, str]:
    """The environment, the same in every run of a seed: of the caller's it has only the terminal's settings."""
    own = {
        "PATH": f"{Path(sys.executable).parent}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": "/run/root",
        "TMPDIR": "/run/tmp",
        "LANG": "C.UTF-8",
        "TZ": "UTC",
        "PYTHONHASHSEED": str(seed % (1 << 32)),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OPENBLAS_NUM_THREADS": "1",
        # What property tests have kept in a checkout moves nothing.
        "HYPOTHESIS_STORAGE_DIRECTORY": "/run/tmp/hypothesis",
        "C4BENCH_IN_LAB": "1",
    }
    return {name: os.environ[name] for name in _PASSED_ON if name in os.environ} | own
