"""`c4bench lab run -- CMD` and `c4bench lab shell`: run a command in a new embedded lab."""

import argparse
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from c4bench import logs
from c4bench.cli import Commands
from c4bench.lab import topology_file
from c4bench.lab.machine.launch import launch
from c4bench.lab.topology import Topology


def register(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser("lab", help="run a command in the embedded SoftRoCE lab")
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    run = actions.add_parser("run", help="run CMD in a new lab, in virtual time")
    run.add_argument("--time", choices=("virtual", "real"), default="virtual", help="the lab's clock (default virtual)")
    run.add_argument("command", nargs="+", metavar="CMD", help="the command, after --")
    run.set_defaults(run=_run)
    shell = actions.add_parser("shell", help="open an interactive shell in a new lab, in real time")
    shell.set_defaults(run=_shell)
    for action in (run, shell):
        action.add_argument(
            "--topology",
            default="clos-2x4",
            metavar="TOPOLOGY",
            help=f"one of {', '.join(topology_file.names())}, or a .yml (default clos-2x4)",
        )
        action.add_argument("--seed", type=int, default=1, metavar="NUMBER", help="same seed, same bytes (default 1)")
        action.add_argument("--bare", action="store_true", help="start hosts without agents, which is faster")
        action.add_argument(
            "--run-dir",
            type=Path,
            metavar="RUN_DIR",
            help="the only directory that the lab may write to (default: a temporary one)",
        )
        logs.add_options(action, "warning")


def _run(arguments: argparse.Namespace) -> int:
    return _in_lab(arguments, arguments.command, virtual=arguments.time == "virtual", interactive=False)


def _shell(arguments: argparse.Namespace) -> int:
    return _in_lab(arguments, ["/bin/bash", "-i"], virtual=False, interactive=sys.stdin.isatty())


def _in_lab(arguments: argparse.Namespace, command: list[str], *, virtual: bool, interactive: bool) -> int:
    fabric = topology_file.load(arguments.topology)
    if interactive:
        sys.stderr.writelines(f"c4bench: {line}\n" for line in banner(fabric))
    with kept_or_scratch(arguments.run_dir) as directory:
        ended = launch(
            fabric,
            command,
            directory,
            seed=arguments.seed,
            virtual=virtual,
            agents=not arguments.bare,
            interactive=interactive,
        )
    return ended.exit_code


def banner(fabric: Topology) -> list[str]:
    """What a user of the shell needs to know, before the lab boots."""
    first, last = fabric.hosts[0].name, fabric.hosts[-1].name
    return [
        f"a shell in topology {fabric.name}, hosts {first} to {last}; the clock is real, and files are lost at the end",
        f"ssh {first}: log in to a host; ip -n {first} link: its interfaces; ip -n {fabric.switches[0].name} route: a "
        "switch's routes; exit: end the lab",
    ]


@contextmanager
def kept_or_scratch(run_directory: Path | None) -> Iterator[Path]:
    """The run directory if one is given, otherwise one that exists as long as the context."""
    if run_directory is not None:
        yield run_directory
        return
    with tempfile.TemporaryDirectory(prefix="c4bench-") as scratch:
        yield Path(scratch)
