"""Before any test runs: check the command line, make the run directory, and enter the lab when that is asked for."""

import shlex
from pathlib import Path

import pytest

from c4bench import inventory
from c4bench.c4d import detectors
from c4bench.doctor import capabilities
from c4bench.errors import UsageError
from c4bench.pytest_plugin.lab_session import LAB, run_in_lab
from c4bench.pytest_plugin.start import arguments, start_run
from c4bench.pytest_plugin.tenancy import TENANCY, Tenancy
from c4bench.pytest_plugin.verdicts import IN_LAB
from c4bench.record import RunDirectory
from c4bench.record.begin import refuse_finished
from c4bench.reserve import scheduler

# Held as long as the session lasts.
_RUN = pytest.StashKey[RunDirectory]()


def prepare(config: pytest.Config) -> int | None:
    """None to go on in this process with real hosts; the exit code when the lab has run everything already."""
    capabilities.check(config.option.c4_require)
    detectors.detector(config.option.c4_detector)
    if config.option.c4_resume and config.option.c4_run_dir is None:
        raise UsageError("--c4-resume: which run? name it with --c4-run-dir, such as reports/runs/latest")
    if config.option.c4_resume and not RunDirectory(config.option.c4_run_dir).started:
        raise UsageError(f"--c4-resume: {config.option.c4_run_dir} holds no run; see reports/runs, or leave it out")
    if config.option.c4_scheduler:
        scheduler(config.option.c4_scheduler)
    if config.option.hosts == LAB:
        return run_in_lab(config)
    loaded = inventory.load_unless_lab(config.option.hosts, LAB)
    capabilities.check(loaded.requires)
    if _continues_in_lab(config.option.c4_run_dir):
        refuse_finished(RunDirectory(config.option.c4_run_dir), resume=config.option.c4_resume)
    else:
        config.stash[_RUN] = start_run(config, "hosts", "hosts", "", "machine", inventory_digest=loaded.digest)
        config.option.c4_run_dir = config.stash[_RUN].path
    config.stash[TENANCY] = Tenancy(config.option, loaded, shlex.join(["pytest", *arguments(config)]))
    return None


def _continues_in_lab(given: Path | None) -> bool:
    """Whether we are in a lab whose run was begun outside, which has already recorded the machine."""
    return IN_LAB and given is not None and given.is_dir() and RunDirectory(given).started
