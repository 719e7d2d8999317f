"""`c4bench paths HOST_A HOST_B --hosts INVENTORY`: the path of each UDP source port, like traceroute for RoCE."""

import argparse
import contextlib
import sys
import time
from collections import defaultdict
from itertools import permutations
from pathlib import Path

import msgspec

from c4bench.c4p.evaluation import gaps
from c4bench.c4p.knowledge.atlas import Pair
from c4bench.c4p.knowledge.cabling import CableDifference, compare_paths
from c4bench.c4p.knowledge.path_knowledge import BY_QP, PathKnowledge
from c4bench.cli import Commands, shared
from c4bench.cli.operators import ask
from c4bench.control.cluster import Cluster
from c4bench.control.paths.learning import SOURCE_PORTS
from c4bench.control.paths.switches import Switches
from c4bench.control.state.store import SavedPaths
from c4bench.errors import UnhealthyError, UsageError
from c4bench.foreign_text import one_line
from c4bench.inventory import Inventory, load, select
from c4bench.model.fabric import DEST_QP, Host
from c4bench.remote import connect
from c4bench.wire.messages import PORT
from c4bench.wire.trust import Role

_AGENTS_WITHIN_S = 10.0


def register(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser("paths", help="trace the path of each UDP source port between two hosts")
    parser.add_argument("a", metavar="HOST_A", help="a host of the inventory")
    parser.add_argument("b", metavar="HOST_B", help="another one")
    parser.add_argument("--hosts", type=Path, required=True, metavar="INVENTORY", help="hosts with agents running")
    shared.add_master(parser)
    parser.add_argument(
        "--listen", metavar="ADDRESS:PORT", help="without a master: where the agents connect to, such as 0.0.0.0:7447"
    )
    parser.add_argument(
        "--ports", type=int, default=24, metavar="NUMBER", help="how many source ports to trace, with --listen (24)"
    )
    shared.add_saved_paths(parser, "--keep")
    parser.add_argument("--saved", action="store_true", help="print saved paths without contacting the hosts")
    parser.add_argument("--json", action="store_true", help="print the paths as JSON, as they are saved")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    inventory = load(arguments.hosts)
    ends = [select(inventory, name)[0] for name in (arguments.a, arguments.b)]
    if ends[0].name == ends[1].name:
        raise UsageError(f"{ends[0].name} is one host; give two")
    if not 0 < arguments.ports < 1 << 14:
        raise UsageError(f"--ports {arguments.ports} is not a number of source ports; give 1 to 16383")
    saved = SavedPaths(arguments.keep, inventory.hosts)
    nics = {nic.name for host in ends for nic in host.nics}
    if arguments.saved:
        known = saved.load().between(nics)
    else:
        known = _learn_alone(arguments, ends, inventory) if arguments.listen else _ask_master(arguments, ends)
        saved.save(PathKnowledge.from_json(known.to_json()))
    differences = _differences(saved.load(), inventory, ask=not arguments.saved)
    if arguments.json:
        sys.stdout.write(_document(known, differences).decode() + "\n")
    else:
        sys.stdout.writelines(line + "\n" for pair in known.pairs for line in table(known, pair, time.time()))
    if known.hash == DEST_QP:
        sys.stderr.write(f"{BY_QP}\n")
    sys.stderr.writelines(f"{one_line(remark)}\n" for remark in [*gaps(known.atlas()), *map(str, differences)])
    if not known.pairs and arguments.saved:
        raise UnhealthyError(f"no paths of these hosts are saved in {saved.path}; leave out --saved to learn them")
    expected = {(a.name, b.name) for x, y in permutations(ends) for a in x.nics for b in y.nics}
    if expected - set(known.pairs):
        raise UnhealthyError("no switch answered; do they send ICMP time exceeded, and is the NIC's link up?")
    return 0


def _ask_master(arguments: argparse.Namespace, ends: list[Host]) -> PathKnowledge:
    """Have the running master learn the paths."""
    return ask(arguments, Role.OPERATOR, lambda master: master.learn_paths([host.name for host in ends]))


def _learn_alone(arguments: argparse.Namespace, ends: list[Host], inventory: Inventory) -> PathKnowledge:
    """Have the agents trace the paths, as their master for that long."""
    address, port = shared.listening("--listen", arguments.listen, PORT)
    with Cluster(ends, arguments.trust, address, port, hash=inventory.hash) as cluster:
        cluster.wait_hosts([host.name for host in ends], _AGENTS_WITHIN_S)
        cluster.learn_paths(range(SOURCE_PORTS.start, SOURCE_PORTS.start + arguments.ports))
        return cluster.known_paths()


def _differences(known: PathKnowledge, inventory: Inventory, *, ask: bool) -> tuple[CableDifference, ...]:
    """How all known paths differ from the inventory's graph; told to `ask`, it asks switches for their addresses."""
    if inventory.graph is None:
        return ()
    names: dict[str, str] = {}
    if ask:
        with contextlib.suppress(UnhealthyError):
            switches = Switches(inventory, lambda name: connect(name, inventory.access[name]))
            names = {address: port.switch for address, port in switches.ports().items()}
    return compare_paths(known.atlas(), inventory.graph, names)


def _document(known: PathKnowledge, differences: tuple[CableDifference, ...]) -> bytes:
    """The paths as they are saved, and the differences."""
    paths: dict[str, object] = msgspec.json.decode(known.to_json())
    return msgspec.json.encode(paths | {"differences": differences})


def table(known: PathKnowledge, pair: Pair, now_s: float) -> list[str]:
    """Every path of a pair, with its source ports, age and confidence."""
    ports_by_path: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for port, entry in sorted(known.entries(pair).items()):
        ports_by_path[entry.hops].append(port)
    lines = [f"{pair[0]} > {pair[1]}: {len(ports_by_path)} paths over {len(known.entries(pair))} source ports"]
    for hops, ports in sorted(ports_by_path.items()):
        entries = [known.entries(pair)[port] for port in ports]
        age_s = now_s - min(entry.confirmed_s for entry in entries)
        confidence = min(entry.confidence for entry in entries)
        listed = " ".join(map(str, ports[:6])) + (" ..." if len(ports) > 6 else "")
        lines.append(
            f"  {' '.join(hops)}  ports {listed}  by {entries[0].how}, {age_s:.0f} s old, confidence {confidence:.2f}"
        )
    return lines
