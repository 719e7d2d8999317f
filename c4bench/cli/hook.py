"""`c4bench hook slurm|kubernetes|torchrun`: have a scheduler act on a finding, a hook's input."""

import argparse
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

from c4bench.cli import Commands, schedulers
from c4bench.cli.schedulers import Step
from c4bench.cli.shared import print_lines
from c4bench.decoding import DecodingError, from_json
from c4bench.errors import UnhealthyError, UsageError
from c4bench.foreign_text import one_line
from c4bench.model.hook import HookInput

# A finding is a few kilobytes; of a job on many hosts their names are the most.
_INPUT_BYTES = 16 << 20
_WITHIN_S = 30.0
_SURE = 0.8
_POLL_S = 0.2


def register(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser("hook", help="act on a finding by a scheduler, as a hook of the master")
    parser.add_argument("scheduler", choices=tuple(_STEPS), help="who acts")
    parser.add_argument("--do", action="store_true", help="run the commands; without it they are printed only")
    parser.add_argument(
        "--confidence",
        type=float,
        default=_SURE,
        metavar="SHARE",
        help=f"leave alone what is less likely right (default {_SURE})",
    )
    parser.set_defaults(run=_hook)


def _hook(arguments: argparse.Namespace) -> int:
    try:
        given = from_json(sys.stdin.buffer.read(_INPUT_BYTES), HookInput)
    except DecodingError as error:
        raise UsageError(
            f"standard input: {error}; give one finding, as a hook gets it: c4bench master --hook"
        ) from None
    if reason := _left_alone(given, arguments.confidence, arguments.scheduler):
        print_lines([f"nothing is done: {reason}"])
        return 0
    steps = list(_STEPS[arguments.scheduler](given))
    if not arguments.do:
        print_lines(f"would run: {shlex.join(step.words)}" for step in steps)
        return 0
    for step in steps:
        _do(step)
    print_lines([f"ran: {'; '.join(shlex.join(step.words) for step in steps)}"])
    return 0


def _left_alone(given: HookInput, least: float, scheduler: str) -> str:
    """Why nothing is done about a finding; "" if something is."""
    found = given.diagnosis
    if not given.host:
        return f"{found.component} is on no host"
    if not schedulers.is_one_host(given.host):
        return f"{one_line(given.host)!r} is no name of one host"
    if not given.sure:
        return f"{found.component} has alternatives ({len(found.alternatives)})"
    if found.confidence < least:
        return f"{found.component} is right with {found.confidence:.0%}, and {least:.0%} is asked for"
    if scheduler == "torchrun" and found.component.kind != "rank":
        return f"{found.component} is no rank, and torchrun starts ranks again where they were"
    return ""


def _message(given: HookInput) -> str:
    return one_line(f"c4bench: {given.diagnosis.cause or given.diagnosis.syndrome}, {given.diagnosis.component}")


def _slurm(given: HookInput) -> Iterator[Step]:
    """Drain the host; then have the job start again without it."""
    yield schedulers.slurm_drain(given.host, _message(given))
    yield from schedulers.slurm_requeue(given.job)


def _kubernetes(given: HookInput) -> Iterator[Step]:
    """Cordon the node; then delete the job's pods there."""
    yield schedulers.kubernetes_cordon(given.host)
    yield schedulers.kubernetes_delete(given.job, given.host)


def _torchrun(given: HookInput) -> Iterator[Step]:
    """End the rank's process: the elastic agent starts all of its group again."""
    number = int(given.diagnosis.component.name.rpartition(":")[2])  # a rank on a host has one
    yield schedulers.torchrun_end(given.job, number, given.host)


_STEPS: dict[str, Callable[[HookInput], Iterator[Step]]] = {
    "slurm": _slurm,
    "kubernetes": _kubernetes,
    "torchrun": _torchrun,
}


def _do(step: Step) -> None:
    """Run a step. Raises UnhealthyError with what the scheduler says."""
    until_s = time.monotonic() + _WITHIN_S
    while not _printed(step.words) and step.awaited:
        if time.monotonic() > until_s:
            raise UnhealthyError(f"{shlex.join(step.words)} printed nothing for {_WITHIN_S:g} s")
        time.sleep(_POLL_S)


def _printed(words: tuple[str, ...]) -> str:
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=_WITHIN_S, check=False)
    except OSError as error:
        raise UnhealthyError(f"{words[0]}: {error.strerror}; install it where the master runs") from None
    except subprocess.TimeoutExpired:
        raise UnhealthyError(f"{shlex.join(words)} took over {_WITHIN_S:g} s") from None
    if done.returncode:
        raise UnhealthyError(f"{shlex.join(words)}: {one_line(done.stderr.strip() or done.stdout.strip())}")
    return done.stdout.strip()
