"""`c4bench completion bash|zsh`: a script by which a shell completes the command line, for people to install."""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from c4bench.bench.runner import SUITES
from c4bench.cli import Commands
from c4bench.errors import UsageError
from c4bench.inject import catalogue
from c4bench.lab import topology_file

SHELLS = ("bash", "zsh")
# What the arguments of these names take, besides those that argparse knows the choices of; and whether files as well.
_NAMES: dict[str, tuple[Callable[[], Sequence[str]], bool]] = {
    "topology": (topology_file.names, True),
    "fault": (lambda: sorted(catalogue.load().specs), False),
    "suites": (lambda: tuple(SUITES), False),
}
_BASH = '_c4bench_{name}() {{ compgen -W "{words}" -- "$1"; {files}; }}\n'
_ZSH = "_c4bench_{name}() {{ compadd -- {words}; {files}; }}\n"


def register(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser("completion", help="print a script by which a shell completes these commands")
    parser.add_argument("shell", choices=SHELLS, help="whose completion to print")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    sys.stdout.write(script(arguments.parser, arguments.shell))
    return 0


def script(parser: argparse.ArgumentParser, shell: str) -> str:
    """The script for a shell, with the names of topologies and faults that there are now.

    Raises UsageError where shtab is not installed.
    """
    try:
        import shtab  # noqa: PLC0415  (an extra)
    except ImportError:
        raise UsageError("shtab is not installed; pip install shtab") from None
    for action in _actions(parser):
        if action.dest in _NAMES:
            action.complete = dict.fromkeys(SHELLS, f"_c4bench_{action.dest}")  # type: ignore[attr-defined]
        elif action.type is Path:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    functions = _functions(_BASH, 'compgen -f -- "$1"') if shell == "bash" else _functions(_ZSH, "_files")
    return shtab.complete(parser, shell, preamble=functions)


def _functions(template: str, files: str) -> str:
    """A shell function for each of `_NAMES`."""
    return "".join(
        template.format(name=name, words=" ".join(words()), files=files if also_files else "true")
        for name, (words, also_files) in _NAMES.items()
    )


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """The arguments of a parser, and of those of its subcommands."""
    for action in parser._actions:  # noqa: SLF001  (no public name)
        yield action
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for choice in action.choices.values():
                yield from _actions(choice)
