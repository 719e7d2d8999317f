"""`c4bench paths HOST_A HOST_B --hosts INVENTORY`: which way each UDP source port takes, a RoCE-aware traceroute."""

import argparse
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

from c4bench.c4p.coverage import gaps
from c4bench.c4p.knowledge import Knowledge, Pair
from c4bench.control.cluster import Cluster
from c4bench.errors import UnhealthyError, UsageError
from c4bench.inventory import load, select

if TYPE_CHECKING:
    from c4bench.cli import Commands

_AGENTS_WITHIN_S = 10.0
_FIRST_PORT = 0xC001


def register(commands: "Commands") -> None:
    """Add the command."""
    parser = commands.add_parser("paths", help="which way each UDP source port takes between two hosts")
    parser.add_argument("a", metavar="HOST_A")
    parser.add_argument("b", metavar="HOST_B")
    parser.add_argument("--hosts", type=Path, required=True, metavar="INVENTORY", help="hosts with agents running")
    parser.add_argument("--trust", type=Path, default=Path.home() / ".config/c4bench/trust", help="certificates")
    parser.add_argument("--listen", default="0.0.0.0:7447", metavar="ADDRESS:PORT", help="where agents connect to")
    parser.add_argument("--ports", type=int, default=24, help="how many source ports to trace")
    parser.add_argument("--json", action="store_true")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    inventory = load(arguments.hosts)
    ends = [select(inventory, name)[0] for name in (arguments.a, arguments.b)]
    if ends[0].name == ends[1].name:
        raise UsageError(f"{ends[0].name} is one host; give two")
    if not 0 < arguments.ports < 1 << 14:
        raise UsageError(f"--ports {arguments.ports} is not a number of source ports; give 1 to 16383")
    address, _, port = arguments.listen.rpartition(":")
    with Cluster(ends, arguments.trust, address, int(port)) as cluster:
        cluster.wait_hosts([host.name for host in ends], _AGENTS_WITHIN_S)
        atlas = cluster.learn_paths(range(_FIRST_PORT, _FIRST_PORT + arguments.ports))
        known = cluster.known_paths()
    if arguments.json:
        sys.stdout.write(known.to_json().decode() + "\n")
    else:
        sys.stdout.writelines(line + "\n" for pair in known.pairs for line in table(known, pair, time.time()))
    sys.stderr.writelines(f"{gap}\n" for gap in gaps(atlas))
    unknown = sorted(set(atlas.pairs) - set(known.pairs))
    if unknown or not known.pairs:
        raise UnhealthyError("no switch answered; do they send ICMP time exceeded, and is the NIC's link up?")
    return 0


def table(known: Knowledge, pair: Pair, now_s: float) -> list[str]:
    """Every way of a pair, with the source ports that take it, how old that is, and how sure."""
    ways: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for port, entry in sorted(known.entries(pair).items()):
        ways[entry.hops].append(port)
    lines = [f"{pair[0]} > {pair[1]}: {len(ways)} ways over {len(known.entries(pair))} source ports"]
    for hops, ports in sorted(ways.items()):
        entries = [known.entries(pair)[port] for port in ports]
        age_s = now_s - min(entry.confirmed_s for entry in entries)
        sure = min(entry.confidence for entry in entries)
        listed = " ".join(map(str, ports[:6])) + (" ..." if len(ports) > 6 else "")
        lines.append(
            f"  {' '.join(hops)}  ports {listed}  by {entries[0].how}, {age_s:.0f} s old, confidence {sure:.2f}"
        )
    return lines
