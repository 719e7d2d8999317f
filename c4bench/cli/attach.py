"""`c4bench attach -- COMMAND`: run a program that c4bench watches and steers, or as without it where it cannot."""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

from c4bench.attach import build
from c4bench.attach.environment import FAILOVER, failover_variables, obstacle, variables
from c4bench.attach.launchers import JOB, exporting, identify, is_mpi, is_open_mpi, safe_name
from c4bench.cli import Commands
from c4bench.errors import UnhealthyError, UsageError
from c4bench.foreign_text import file_name, one_line

_VERSION_S = 30.0


def register(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser("attach", help="run a program so that c4bench watches it and plans its paths")
    parser.add_argument(
        "--job", default="", metavar="NAME", help=f"the job's name (default {JOB}, or what the launcher says)"
    )
    parser.add_argument(
        "--in-place",
        action="store_true",
        help="preload nothing: stand in libibverbs' place, for programs that preload libraries of their own",
    )
    parser.add_argument(
        "--failover",
        action="store_true",
        help=f"go on at the host's other NIC when one fails; {FAILOVER}=NIC=NIC,... says which is whose other one",
    )
    parser.add_argument(
        "--balance", action="store_true", help="with --failover: share the load of queue pairs with the other NIC"
    )
    parser.add_argument("command", nargs="+", metavar="COMMAND", help="the program and its arguments, after --")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    """Replace this process by the program. Raises UsageError where it cannot be run."""
    words = tuple(arguments.command)
    if arguments.failover and arguments.in_place:
        raise UsageError("--failover is a library to preload: give it without --in-place")
    if arguments.balance and not arguments.failover:
        raise UsageError("--balance moves queue pairs as a failover does: give it with --failover")
    path = shutil.which(words[0])
    if path is None:
        raise UsageError(f"{one_line(words[0])}: no such program on PATH; name it by its path")
    try:
        if why := obstacle(Path(path)):
            _note(f"{file_name(path)} runs as without c4bench: {why}")
        else:
            extra = failover_variables(os.environ, balance=arguments.balance) if arguments.failover else {}
            words = _attach(words, arguments.job, extra, in_place=arguments.in_place)
        os.execv(path, words)
    except OSError as error:
        raise UsageError(f"{file_name(path)}: {error.strerror}") from None


def _attach(words: tuple[str, ...], job: str, extra: dict[str, str], *, in_place: bool) -> tuple[str, ...]:
    """Set the variables of the program, with those `extra` of failover; returns its words.

    A launcher's words are with those by which ranks inherit the variables.
    """
    try:
        libraries = build.libraries(verbs=not in_place, failover=bool(extra))
        found = variables(libraries, build.profiler(), os.environ, build.in_place() if in_place else None)
    except UnhealthyError as error:
        _note(f"{one_line(words[0])} runs as without c4bench: {error}")
        return words
    if name := job or _job(words):
        found[JOB] = safe_name(name)
    found |= extra
    if is_mpi(words) and is_open_mpi(words, _version(words)):
        return exporting(words, found)
    os.environ.update(found)
    return words


def _job(words: tuple[str, ...]) -> str:
    """A name for what no launcher has named: "" where one of several ranks may not choose it."""
    known = identify(os.environ)
    if known.job:
        return ""
    if known.rank is not None:
        _note(f"{known.launcher} names no job that all ranks know: set {JOB}, or give --job")
        return ""
    return f"{Path(words[0]).name}-{os.uname().nodename}-{os.getpid()}"


def _version(words: tuple[str, ...]) -> str:
    command = [words[0], "--version"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=_VERSION_S, check=False).stdout
    except subprocess.TimeoutExpired:
        return ""


def _note(text: str) -> None:
    sys.stderr.write(f"c4bench: attach: {one_line(text)}\n")
