"""Real routing daemons on a lab's switches: FRR's zebra, bgpd and bfdd, one of each for every switch.

The fabric is routed as RFC 7938 has it: eBGP on every link, an autonomous system for each switch nearest to hosts, and
one for all switches farther away that reach each other by nearer ones. So no route leads down and up again.
"""

import json
import os
import shutil
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from c4bench.attach import build
from c4bench.errors import UnhealthyError
from c4bench.lab.guest import fabric
from c4bench.lab.spec import ROUTING_DAEMONS
from c4bench.lab.topology import LinkEnd, Topology, next_hops
from c4bench.model.graph import distances

PROGRAMS = Path("/usr/lib/frr")
_FOLDER = Path(ROUTING_DAEMONS)
_DAEMONS = ("zebra", "bfdd", "bgpd")
_USER = "frr"
_FIRST_SYSTEM = 4_200_000_000  # RFC 6996: private use
_WITHIN_S = 30.0
_TRY_S = 0.05


def configuration(topology: Topology, switch: str) -> str:
    """What a switch's bgpd reads: its neighbours, all with BFD, and the subnets that it delivers to."""
    systems = autonomous_systems(topology)
    position = [known.name for known in topology.switches].index(switch)
    neighbours = [(far, systems[far.switch]) for far in _far_ends(topology, switch)]
    subnets = (number for number, edges in topology.subnets.items() if switch in edges)
    lines = (
        f"hostname {switch}",
        "frr defaults datacenter",
        f"router bgp {systems[switch]}",
        f" bgp router-id 172.31.{position >> 8}.{position & 0xFF}",
        " bgp bestpath as-path multipath-relax",
        " no bgp ebgp-requires-policy",
        " no bgp network import-check",
        *(f" neighbor {far.address} remote-as {system}" for far, system in neighbours),
        *(f" neighbor {far.address} bfd" for far, _ in neighbours),
        *(f" network {fabric.subnet(number)}" for number in subnets),
    )
    return "\n".join(lines) + "\n"


def autonomous_systems(topology: Topology) -> dict[str, int]:
    """The number of each switch's autonomous system."""
    tiers = {switch.name: switch.tier for switch in topology.switches}
    systems: dict[str, int] = {}
    for number, switch in enumerate(topology.switches):
        if switch.name in systems:
            continue
        joined: dict[str, list[str]] = defaultdict(list)
        for link in topology.links:
            if all(tiers[end.switch] <= switch.tier for end in link.ends):
                for end in link.ends:
                    joined[end.switch].append(link.far_end(end.switch).switch)
        alike = (name for name in distances([switch.name], joined) if tiers[name] == switch.tier)
        systems |= dict.fromkeys(alike, _FIRST_SYSTEM + number)
    return systems


def _far_ends(topology: Topology, switch: str) -> Iterator[LinkEnd]:
    for link in topology.links:
        if switch in (end.switch for end in link.ends):
            yield link.far_end(switch)


def start(topology: Topology) -> None:
    """Start every switch's daemons, and wait until all routes are there. Raises UnhealthyError."""
    for switch in topology.switches:
        _start(topology, switch.name)
    expected = {
        switch: {fabric.subnet(number): len(hops) for number, hops in routes.items()}
        for switch, routes in next_hops(topology).items()
    }
    ends_s = time.monotonic() + _WITHIN_S
    while missing := [switch for switch, routes in expected.items() if not routes.items() <= _routes(switch).items()]:
        if time.monotonic() > ends_s:
            said = "".join(path.read_text()[-300:] for path in sorted((_FOLDER / missing[0]).glob("*.log")))
            raise UnhealthyError(f"no BGP routes on {', '.join(missing)} after {_WITHIN_S:g} s: {said.strip()}")
        time.sleep(_TRY_S)


def _start(topology: Topology, switch: str) -> None:
    """Start one switch's daemons. They ask for events without waiting, so time must move (`attach.build`)."""
    folder = _FOLDER / switch
    folder.mkdir(parents=True)
    (folder / "bgpd.conf").write_text(configuration(topology, switch))
    for path in (_FOLDER, folder):
        shutil.chown(path, _USER, _USER)
    environment = os.environ | {"LD_PRELOAD": str(build.library("lab"))}
    for name in _DAEMONS:
        files = ("-f", str(folder / f"{name}.conf"), "-i", str(folder / f"{name}.pid"))
        log = ("--log", f"file:{folder / name}.log", "--log-level", "notifications")
        argv = (str(PROGRAMS / name), "--daemon", "-N", switch, "-u", _USER, "-g", _USER, *files, *log)
        with fabric.inside(switch):
            done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise UnhealthyError(f"{name} on {switch}: {done.stderr.strip() or done.stdout.strip()}")


def _routes(switch: str) -> dict[str, int]:
    """How many next hops a switch's kernel has for each destination of BGP."""
    with fabric.inside(switch):
        said = subprocess.run(["ip", "-json", "route", "show", "proto", "bgp"], capture_output=True, check=True).stdout
    return {route["dst"]: len(route.get("nexthops", [route])) for route in json.loads(said or b"[]")}
