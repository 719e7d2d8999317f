"""`c4bench lab run -- CMD`, `lab shell`: a command in a new lab. `topology list|show|check|import`: fabrics."""

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from c4bench import logs
from c4bench.cli import Commands, cabling
from c4bench.lab import topology_file
from c4bench.lab.machine.launch import launch
from c4bench.lab.topology import Topology
from c4bench.units import format_rate


def register(commands: Commands) -> None:
    """Add the commands."""
    parser = commands.add_parser("lab", help="run a command in the embedded SoftRoCE lab")
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    run = actions.add_parser("run", help="run CMD in a new lab, in virtual time")
    run.add_argument("--time", choices=("virtual", "real"), default="virtual", help="the lab's clock (default virtual)")
    run.add_argument("command", nargs="+", metavar="CMD", help="the command, after --")
    run.set_defaults(run=_run)
    shell = actions.add_parser("shell", help="open an interactive shell in a new lab, in real time")
    shell.set_defaults(run=_shell)
    for action in (run, shell):
        add_options(action)
        action.add_argument("--bare", action="store_true", help="start hosts without agents, which is faster")
        action.add_argument(
            "--run-dir",
            type=Path,
            metavar="RUN_DIR",
            help="the only directory that the lab may write to (default: a temporary one)",
        )
        logs.add_options(action, "warning")
    parser = commands.add_parser("topology", help="list, show or check fabrics of the lab, or import cabling files")
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    actions.add_parser("list", help="the topologies that come with the package").set_defaults(run=_list)
    show = actions.add_parser("show", help="what is cabled to what, and the file it is from")
    check = actions.add_parser("check", help="report whether a lab can have this fabric")
    for action, shown in ((show, _show), (check, _check)):
        action.add_argument("topology", metavar="TOPOLOGY", help="a name, or a file (docs/topologies.md)")
        action.set_defaults(run=shown)
    cabling.add_import(actions)


def add_options(parser: argparse._ActionsContainer) -> None:
    """Add `--topology` and `--seed`."""
    parser.add_argument(
        "--topology",
        default="clos-2x4",
        metavar="TOPOLOGY",
        help=f"one of {', '.join(topology_file.names())}, or a .yml (default clos-2x4)",
    )
    parser.add_argument("--seed", type=int, default=1, metavar="NUMBER", help="same seed, same bytes (default 1)")


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


def _list(_arguments: argparse.Namespace) -> int:
    known = [topology_file.load(name) for name in topology_file.names()]
    width = max(len(topology.name) for topology in known)
    sys.stdout.writelines(f"{topology.name:<{width}}  {topology.description}\n" for topology in known)
    return 0


def _check(arguments: argparse.Namespace) -> int:
    sys.stdout.write(f"ok  {summary(topology_file.load(arguments.topology))}\n")
    return 0


def _show(arguments: argparse.Namespace) -> int:
    topology = topology_file.load(arguments.topology)
    lines = [f"{topology.name}: {topology.description}", summary(topology), ""]
    lines += [
        f"{port.nic.name:<12} {port.nic.address:<16} {port.switch}/{port.interface}  {format_rate(port.rate_bps)}"
        for port in topology.ports
    ]
    lines += [
        f"{link.lower.switch}/{link.lower.interface:<10} {link.upper.switch}/{link.upper.interface:<10} "
        f"{format_rate(link.rate_bps)}"
        for link in topology.links
    ]
    sys.stdout.writelines(f"{line}\n" for line in [*lines, "", f"file: {topology_file.path_of(arguments.topology)}"])
    return 0


def summary(topology: Topology) -> str:
    """How many hosts, NICs, switches of each tier, and links there are."""
    tiers = Counter(switch.tier for switch in topology.switches)
    switches = ", ".join(f"{count} in tier {tier}" for tier, count in sorted(tiers.items()))
    nics = sum(len(host.nics) for host in topology.hosts)
    return f"{len(topology.hosts)} hosts, {nics} NICs, {len(topology.switches)} switches ({switches}), " + (
        f"{len(topology.links)} links between switches"
    )
