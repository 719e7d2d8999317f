"""The start of a run: the command line as it was given, and the run directory."""

import pytest

from c4bench.record import RunDirectory, begin
from c4bench.record.begin import ROOT


def arguments(config: pytest.Config) -> list[str]:
    """The words of the command line after `pytest`."""
    return [str(argument) for argument in config.invocation_params.args]


def start_run(config: pytest.Config, kind: str, backend: str, topology: str, clock: str, **known: str) -> RunDirectory:
    """The run directory that the command line names, or a new one; held as long as the returned object lives."""
    return begin(
        config.option.c4_run_dir,
        kind,
        command=("pytest", *arguments(config)),
        seed=config.option.c4_seed,
        backend=backend,
        topology=topology,
        clock=clock,
        root=config.rootpath / ROOT,
        resume=config.option.c4_resume,
        **known,
    )
