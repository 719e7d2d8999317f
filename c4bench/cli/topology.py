"""`c4bench topology list|show|check`: the fabrics a lab can have, and whether a file of one's own is one."""

import argparse
import sys
from collections import Counter

from c4bench.cli import Commands
from c4bench.lab import topology_file
from c4bench.lab.topology import Topology
from c4bench.units import format_rate


def register(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser("topology", help="list, show or check fabrics of the lab")
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    actions.add_parser("list", help="the topologies that come with the package").set_defaults(run=_list)
    show = actions.add_parser("show", help="what is cabled to what, and the file it is from")
    check = actions.add_parser("check", help="report whether a lab can have this fabric")
    for action, run in ((show, _show), (check, _check)):
        action.add_argument("topology", metavar="TOPOLOGY", help="a name, or a .yml file (docs/topologies.md)")
        action.set_defaults(run=run)


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
