"""The programs a job may name. Each is the `run` of a module, which is imported only when it runs."""

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any, Protocol, runtime_checkable

import msgspec

from c4bench import extensions
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
    "pretraining",
    "pulse",
    "recording",
    "recovery",
    "serving",
    "steady",
    "training",
    "trials",
)


@runtime_checkable
class Program(Protocol):
    """A module with a function `run`, which every rank of a job calls; it may have a `check` as well (see `check`)."""

    run: Callable[[RankContext], None]


class _Modules(Mapping[str, Program]):
    """The modules here."""

    def __getitem__(self, name: str) -> Program:
        if name not in NAMES:
            raise KeyError(name)
        return import_module(f"c4bench.workload.{name}")

    def __iter__(self) -> Iterator[str]:
        return iter(NAMES)

    def __len__(self) -> int:
        return len(NAMES)

    def __contains__(self, name: object) -> bool:
        return name in NAMES


PROGRAMS: extensions.Registry[Program] = extensions.Registry(
    extensions.WORKLOADS, "a module with a function run(context)", _Modules, extensions.is_a(Program)
)


def program(name: str) -> Callable[[RankContext], None]:
    """Import a program by name. Raises UsageError if there is none."""
    return extensions.find(PROGRAMS, "program", name).run


def check(name: str, parameters: dict[str, Any]) -> None:
    """Raise UsageError if a program cannot run with these parameters, as far as can be seen here.

    Whoever requests a job calls this first, so that nothing is started in vain. A program that can tell has a function
    `check(parameters)`; it raises UsageError, or msgspec's ValidationError that names the parameter.
    """
    module: Any = extensions.find(PROGRAMS, "program", name)
    try:
        if hasattr(module, "check"):
            module.check(parameters)
    except msgspec.ValidationError as error:
        raise UsageError(f"program {name!r}: {error}") from None


def rank_main(job: JobSpec, rank: int, config: AgentConfig) -> int:
    """Run one rank to its end; the exit code is 0 when its program returned."""
    context = RankContext(job, rank, config)
    try:
        program(job.program)(context)
    except C4Error as error:
        context.report("error", error=str(error))
        return error.exit_code
    return 0
