"""The commands that repeat a run, or one of its scenarios."""

import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath

from c4bench.record import Provenance, RunDirectory

_SEED = ("--c4-seed", "--seed")
# Options whose value is a path of a test; they are about other tests than the one to repeat.
_ABOUT_TESTS = frozenset({"--ignore", "--deselect", "--ignore-glob"})
# Options that say where to write, and the one without a value that goes with them.
_ABOUT_RUN = frozenset({"--c4-run-dir", "--junitxml", "--junit-xml", "--report-log", "--log-file"})
_RESUME = "--c4-resume"


def repeat_run(provenance: Provenance) -> str:
    """The command line that repeats a run with its seed, in a directory of its own: a finished run is read-only."""
    command = list(_elsewhere(provenance.command))
    return shlex.join([*command, *_seed(command, provenance)])


def repeat_scenario(provenance: Provenance, node: str) -> str:
    """The command line that runs the test `node` of a run again, with the run's options and seed."""
    command = list(_without_tests(_elsewhere(provenance.command), node))
    return shlex.join([*command, node, *_seed(command, provenance)])


def nodes(run: RunDirectory) -> Mapping[str, str]:
    """The pytest node of each scenario that the run has run to its end."""
    ended = (event for event in run.events() if event.get("kind") == "ended")
    return {str(event["scenario"]): str(event["node"]) for event in ended if "scenario" in event and "node" in event}


def _seed(command: Sequence[str], provenance: Provenance) -> list[str]:
    seeded = any(argument.split("=")[0] in _SEED for argument in command)
    return [] if seeded else ["--c4-seed", str(provenance.seed)]


def _elsewhere(command: Sequence[str]) -> Iterator[str]:
    """A pytest command without what says where to write; such a run makes a new directory."""
    return (argument for argument in without(command, _ABOUT_RUN) if argument != _RESUME)


def _without_tests(command: Iterable[str], node: str) -> Iterator[str]:
    """A pytest command without its tests, and without options that name others."""
    return (argument for argument in without(command, _ABOUT_TESTS) if not _is_test(argument, node))


def without(command: Iterable[str], options: Collection[str]) -> Iterator[str]:
    """A command without these options and their values."""
    arguments = iter(command)
    for argument in arguments:
        name, is_joined, _ = argument.partition("=")
        if name not in options:
            yield argument
        elif not is_joined:
            next(arguments, None)


def _is_test(argument: str, node: str) -> bool:
    """Whether an argument names a file or a folder of tests, which lie where the node does."""
    path = PurePath(argument.partition("::")[0])
    return path.suffix == ".py" or (not path.suffix and path.parts[:1] == PurePath(node).parts[:1])
