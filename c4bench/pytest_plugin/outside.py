"""Before any test runs: check the command line, make the run directory, and enter the lab when that is asked for."""

import shlex
import sys
from pathlib import Path

import pytest

from c4bench import inventory
from c4bench.doctor import capabilities
from c4bench.errors import UsageError
from c4bench.lab import topology_file as topologies
from c4bench.lab.machine import kernel, launch
from c4bench.lab.machine.modes import lab_mode
from c4bench.lab.machine.run import LabRun, require_open_files
from c4bench.lab.places import RUN
from c4bench.lab.spec import INVENTORY
from c4bench.model.measurement import Clock
from c4bench.pytest_plugin.tenancy import TENANCY, Tenancy
from c4bench.pytest_plugin.verdicts import IN_LAB
from c4bench.record import Ledger, RunDirectory, begin
from c4bench.record.begin import ROOT
from c4bench.report import render
from c4bench.reserve import scheduler

LAB = "softroce"
# Held as long as the session lasts.
_RUN = pytest.StashKey[RunDirectory]()


def prepare(config: pytest.Config) -> int | None:
    """None to go on in this process with real hosts; the exit code when the lab has run everything already."""
    capabilities.check(config.option.c4_require)
    if config.option.c4_resume and config.option.c4_run_dir is None:
        raise UsageError("--c4-resume: which run? name it with --c4-run-dir, such as reports/runs/latest")
    if config.option.c4_resume and not RunDirectory(config.option.c4_run_dir).started:
        raise UsageError(f"--c4-resume: {config.option.c4_run_dir} holds no run; see reports/runs, or leave it out")
    if config.option.c4_scheduler:
        scheduler(config.option.c4_scheduler)
    if config.option.hosts == LAB:
        return _run_in_lab(config)
    loaded = inventory.load(Path(config.option.hosts))
    capabilities.check(loaded.requires)
    if not _continues_in_lab(config.option.c4_run_dir):
        config.stash[_RUN] = _run(config, "hosts", "", "machine", inventory_digest=loaded.digest)
        config.option.c4_run_dir = config.stash[_RUN].path
    config.stash[TENANCY] = Tenancy(config.option, loaded, shlex.join(["pytest", *_arguments(config)]))
    return None


def _continues_in_lab(given: Path | None) -> bool:
    """Whether we are in a lab whose run was begun outside, which has already recorded the machine."""
    return IN_LAB and given is not None and given.is_dir() and RunDirectory(given).started


def _arguments(config: pytest.Config) -> list[str]:
    return [str(argument) for argument in config.invocation_params.args]


def _run(config: pytest.Config, backend: str, topology: str, clock: str, **known: str) -> RunDirectory:
    return begin(
        config.option.c4_run_dir,
        "main" if backend == LAB else "hosts",
        command=("pytest", *_arguments(config)),
        seed=config.option.c4_seed,
        backend=backend,
        topology=topology,
        clock=clock,
        root=config.rootpath / ROOT,
        **known,
    )


def _run_in_lab(config: pytest.Config) -> int:
    option = config.option
    topology = topologies.load(option.c4_topology)
    built = kernel.require()
    require_open_files(len(topology.hosts))
    time = option.c4_time or "virtual"
    built_as = {"kernel": built.version, "kernel_build": built.build, "lab_mode": lab_mode()}
    run = _run(config, LAB, topology.name, time, **built_as)
    sys.stdout.write(f"c4bench: {run.path} is {RUN} in the lab\n")
    sys.stdout.flush()
    command, virtual, limit_s = _command(config, run, time), time == "virtual", 3600 * option.c4_limit
    lab = launch.launch(topology, command, run.path, seed=option.c4_seed, virtual=virtual, limit_s=limit_s)
    _time(run, built, lab)
    report = render(run.path)
    sys.stdout.write(f"c4bench: report {report}\n")
    return lab.exit_code


def _command(config: pytest.Config, run: RunDirectory, time: str) -> list[str]:
    """The same pytest command, told where the lab's inventory, certificates and run directory are."""
    return [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        *_located(_without_hosts(_arguments(config)), config),
        f"--rootdir={config.rootpath}",
        *([f"--config-file={config.inipath}"] if config.inipath else []),
        f"--hosts={INVENTORY}",
        f"--c4-run-dir={run.path.resolve()}",
        f"--c4-trust={launch.trust_directory(run.path)}",
        f"--c4-time={time}",
        "--c4-allow-disruptive",
        "--c4-reserve=0",  # a lab is nobody else's
        f"--color={'yes' if sys.stdout.isatty() else 'no'}",
    ]


def _without_hosts(arguments: list[str]) -> list[str]:
    kept = []
    skip = False
    for argument in arguments:
        if not skip and argument != "--hosts" and not argument.startswith("--hosts="):
            kept.append(argument)
        skip = argument == "--hosts"
    return kept


def _located(arguments: list[str], config: pytest.Config) -> list[str]:
    """Paths of tests from the root on: our working directory may have another name in the lab than beside them."""
    here = config.invocation_params.dir
    return [str(here / argument) if argument in config.args else argument for argument in arguments]


def _time(run: RunDirectory, built: kernel.Kernel, lab: LabRun) -> None:
    ledger = Ledger(run, "lab")
    ledger.measure("lab.boot_s", lab.boot_s, "s", clock=Clock.MACHINE)
    ledger.measure("lab.machine_s_per_virtual_s", lab.machine_s / lab.virtual_s, "s/s", clock=Clock.MACHINE)
    ledger.measure("setup.kernel_build_s", built.build_s, "s", clock=Clock.MACHINE)
    if built.setup_s is not None:
        ledger.measure("setup.total_s", built.setup_s, "s", clock=Clock.MACHINE)
