"""The programs a job may name. Each is the `run` of a module here, which is imported only when it runs."""

from collections.abc import Callable
from importlib import import_module

from c4bench.errors import UsageError
from c4bench.workload.context import RankContext

NAMES = (
    "bandwidth",
    "collectives",
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
    if name not in NAMES:
        raise UsageError(f"no program {name!r}: one of {', '.join(NAMES)}")
    run: Callable[[RankContext], None] = import_module(f"c4bench.workload.{name}").run
    return run
