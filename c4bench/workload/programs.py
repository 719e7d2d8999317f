"""The programs a job may name. Each is the `run` of a module here, which is imported only when it runs."""

from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

import msgspec

from c4bench.errors import C4Error, UsageError
from c4bench.model.agent import AgentConfig
from c4bench.wire.messages import JobSpec
from c4bench.workload.context import RankContext

NAMES = (
    "bandwidth",
    "collectives",
    "diloco",
    "draws",
    "groups",
    "learning",
    "link",
    "pairs",
    "perftest",
    "pulse",
    "recording",
    "recovery",
    "steady",
    "steps",
    "training",
    "trials",
)


def program(name: str) -> Callable[[RankContext], None]:
    """Import a program by name. Raises UsageError if there is none."""
    run: Callable[[RankContext], None] = _module(name).run
    return run


def check(name: str, parameters: dict[str, Any]) -> None:
    """Raise UsageError if a program cannot run with these parameters, as far as can be seen here.

    Whoever requests a job calls this first, so that nothing is started in vain. A program that can tell has a function
    `check(parameters)`; it raises UsageError, or msgspec's ValidationError that names the parameter.
    """
    module = _module(name)
    try:
        if hasattr(module, "check"):
            module.check(parameters)
    except msgspec.ValidationError as error:
        raise UsageError(f"program {name!r}: {error}") from None


def _module(name: str) -> ModuleType:
    if name not in NAMES:
        raise UsageError(f"no program {name!r}: one of {', '.join(NAMES)}")
    return import_module(f"c4bench.workload.{name}")


def rank_main(job: JobSpec, rank: int, config: AgentConfig) -> int:
    """Run one rank to its end; the exit code is 0 when its program returned."""
    context = RankContext(job, rank, config)
    try:
        program(job.program)(context)
    except C4Error as error:
        context.report("error", error=str(error))
        return error.exit_code
    return 0
