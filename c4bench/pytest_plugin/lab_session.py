"""Run a whole pytest session in a new lab."""

import sys

import pytest

from c4bench.lab import topology_file as topologies
from c4bench.lab.machine import containment, kernel, launch, packages
from c4bench.lab.machine.modes import lab_mode
from c4bench.lab.machine.run import LabRun
from c4bench.lab.places import RUN
from c4bench.model.measurement import Clock
from c4bench.pytest_plugin.lab_collect import collect
from c4bench.pytest_plugin.lab_command import debugs, lab_command
from c4bench.pytest_plugin.lab_files import carried
from c4bench.pytest_plugin.lab_progress import LabProgress
from c4bench.pytest_plugin.start import start_run
from c4bench.record import Ledger, RunDirectory
from c4bench.report import conclude, evaluate_run, render
from c4bench.report.headlines import sentence
from c4bench.report.markdown import counts

LAB = "softroce"
_PYTEST = "pytest"  # in the lab's folder of the run directory: what pytest writes in the lab


def run_in_lab(config: pytest.Config) -> int:
    """Collect, boot a lab, run the tests in it, write the report; return the exit code of the pytest in the lab.

    Raises C4Error, before a run directory is made, for what can be known to fail.
    """
    option = config.option
    topology = topologies.load(option.c4_topology)
    clock = option.c4_time or "virtual"
    interactive = debugs(config, clock)
    packages.require_pyverbs()
    refused, tests = collect(config)
    if refused:
        return refused
    built = kernel.require()
    launch.require_machine(len(topology.hosts))
    built_as = {"kernel": built.version, "kernel_build": built.build, "lab_mode": lab_mode()}
    run = start_run(config, "main", LAB, topology.name, clock, **built_as)
    sys.stdout.write(f"c4bench: {run.path} is {RUN} in the lab\n")
    sys.stdout.flush()
    files = carried(config, run.path.resolve() / launch.LAB_DIRECTORY / _PYTEST)
    try:
        with containment.unwinding(), files as words, LabProgress(run, tests):
            lab = launch.launch(
                topology,
                lab_command(config, run.path, clock, words),
                run.path,
                seed=option.c4_seed,
                virtual=clock == "virtual",
                interactive=interactive,
                limit_s=3600 * option.c4_limit,
            )
    except KeyboardInterrupt:
        show_so_far(run)
        raise
    record_times(run, built, lab, booted=not interactive)
    code = conclude(run, lab.exit_code)
    sys.stdout.write(f"c4bench: report {render(run.path)}\n")
    return code


def show_so_far(run: RunDirectory) -> None:
    """Say how the tests of a run that was interrupted have ended, and where its report is."""
    verdict = evaluate_run(run.path)
    taken = [f"{taken.outcome:<13} {sentence(taken)}" for taken in verdict.measurements]
    ended = f"c4bench: so far {counts(verdict)}"
    sys.stdout.writelines(f"{line}\n" for line in [*taken, ended, f"c4bench: report {render(run.path)}"])
    sys.stdout.flush()


def record_times(run: RunDirectory, built: kernel.Kernel, lab: LabRun, *, booted: bool = True) -> None:
    """Record what the machine's clock told; `booted` is false where nobody saw when the lab was up."""
    ledger = Ledger(run, "lab")
    if booted:
        ledger.measure("lab.boot_s", lab.boot_s, "s", clock=Clock.MACHINE)
    ledger.measure("lab.machine_s_per_virtual_s", lab.machine_s / lab.virtual_s, "s/s", clock=Clock.MACHINE)
    ledger.measure("setup.kernel_build_s", built.build_s, "s", clock=Clock.MACHINE)
    if built.setup_s is not None:
        ledger.measure("setup.total_s", built.setup_s, "s", clock=Clock.MACHINE)
