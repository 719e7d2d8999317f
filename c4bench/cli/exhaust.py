"""`c4bench exhaust`: a program again and again, each time with one event at another packet."""

import argparse
import re
import sys
from pathlib import Path
from typing import get_args

from c4bench import logs
from c4bench.attach.starting import words_of
from c4bench.cli import Commands
from c4bench.cli.lab import kept_or_scratch
from c4bench.decoding import whole_number
from c4bench.errors import UsageError
from c4bench.exhaust.harness import Sweep, Tally, repeat, sweep
from c4bench.exhaust.program import Collective, Program
from c4bench.exhaust.trials import EVENTS, Shard, chosen, read_replay

_SHRINKS = 300
_COLLECTIVES = get_args(Collective)


def register(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser("exhaust", help="one event at each packet of a program (docs/reference/exhaust.md)")
    parser.add_argument("program", nargs="?", metavar="PROGRAM", help=f"{', '.join(_COLLECTIVES)}, or attached")
    parser.add_argument("--command", default="", metavar="COMMAND", help="to attach at both ends of a connection")
    parser.add_argument("--ranks", type=int, metavar="NUMBER", help="one on each host (default 8; attached: 2)")
    parser.add_argument("--bytes", type=int, default=65536, metavar="NUMBER", help="of the array (default 65536)")
    parser.add_argument("--operations", type=int, default=1, metavar="NUMBER", help="one after the other (default 1)")
    parser.add_argument("--resilient", action="store_true", help="ranks that survive the loss of a NIC")
    parser.add_argument("--nics", type=int, default=2, metavar="NUMBER", help="of each resilient rank (default 2)")
    parser.add_argument(
        "--slots", type=int, default=4, metavar="NUMBER", help="messages of which a rank has room (default 4)"
    )
    parser.add_argument("--events", default="", metavar="EVENTS", help=f"of {', '.join(EVENTS)} (default: all)")
    parser.add_argument("--runs", type=int, default=0, metavar="NUMBER", help="at most so many more (default: all)")
    parser.add_argument(
        "--shard", default="1/1", metavar="SHARD", help="such as 1/2: one of two parts of all trials (default 1/1)"
    )
    parser.add_argument("--seed", type=int, default=1, metavar="NUMBER", help="of the lab and of the order (default 1)")
    parser.add_argument(
        "--before", default="", metavar="PLACE", help="FILE.py:NAME, a function that each rank calls first"
    )
    parser.add_argument(
        "--shrink", type=int, default=_SHRINKS, metavar="NUMBER", help=f"trials to spend on it ({_SHRINKS})"
    )
    parser.add_argument("--replay", type=Path, metavar="FILE", help="repeat the trial that went wrong, of this file")
    parser.add_argument("--run-dir", type=Path, metavar="RUN_DIR", help="keep the ledger here, and go on from it")
    logs.add_options(parser, "warning")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    with kept_or_scratch(arguments.run_dir) as folder:
        if arguments.replay:
            return _replay(arguments.replay, folder)
        return _sweep(_asked(arguments), folder)


def _asked(arguments: argparse.Namespace) -> Sweep:
    """What the command line asks for. Raises UsageError."""
    if arguments.program not in {*_COLLECTIVES, "attached"}:
        raise UsageError(
            f"no program {arguments.program!r}: give {', '.join(_COLLECTIVES)}, attached, or --replay FILE"
        )
    program = Program(
        arguments.program,
        arguments.ranks or (2 if arguments.program == "attached" else 8),
        arguments.bytes,
        arguments.operations,
        arguments.resilient,
        _found(arguments.before),
        arguments.nics,
        words_of(arguments.command) if arguments.command else (),
        arguments.slots,
    )
    kinds = chosen([name for name in arguments.events.split(",") if name])
    return Sweep(program, arguments.seed, tuple(kinds), _shard(arguments.shard), arguments.runs, arguments.shrink)


def _found(place: str) -> str:
    """The place of a function, whose file must be there. The lab has the same working directory."""
    path, _, name = place.rpartition(":")
    if place and not (Path(path).is_file() and name.isidentifier()):
        raise UsageError(f"--before {place}: give FILE.py:NAME of a function")
    return place


def _shard(text: str) -> Shard:
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if not match:
        raise UsageError(f"--shard {text}: give a part of all, such as 1/2")
    return Shard(whole_number(match[1]), whole_number(match[2]))


def _sweep(asked: Sweep, folder: Path) -> int:
    counted = sweep(asked, folder)
    sys.stdout.write("\n".join(_lines(asked, counted)) + "\n")
    replays = sorted(folder.glob("replay-*.json"))
    sys.stdout.writelines(f"replay: {path.read_text()}" for path in replays)
    return int(counted.wrong > 0)


def _lines(asked: Sweep, counted: Tally) -> list[str]:
    lines = [f"{asked.program.title}: {counted.runs} trials, {counted.wrong} wrong, in {counted.machine_s:.0f} s"]
    lines += [
        f"  {what:<12} " + ", ".join(f"{number} {verdict}" for verdict, number in outcomes.items())
        for what, outcomes in counted.outcomes.items()
    ]
    lines.append(f"  until the event like the undisturbed run: {counted.placed} of {counted.runs}")
    lines.append(
        f"  undisturbed runs: {counted.undisturbed}, with {counted.kinds_of_undisturbed} different packet lists"
    )
    return lines


def _replay(path: Path, folder: Path) -> int:
    replay = read_replay(path)
    entry = repeat(replay, folder)
    sys.stdout.write(f"{replay.program.title}, {replay.event}: {entry.verdict} ({entry.detail or 'no error'})\n")
    return int(entry.verdict == "wrong")
