"""`c4bench first-light`: try each fault once on one idle link of real hardware, and write what came of it to a file."""

import argparse
import sys
from pathlib import Path

import msgspec

from c4bench import files, remote
from c4bench.cli import Commands
from c4bench.errors import UnhealthyError
from c4bench.foreign_text import one_line
from c4bench.inject import catalogue, places
from c4bench.inject.controller import Injector
from c4bench.inject.first_light import first_light
from c4bench.inventory import load
from c4bench.model.fault import Parameter

_LEASE = Parameter("", "number", unit="s", minimum=5.0, maximum=catalogue.LEASE_MAX_S)


def register(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "first-light", help="try each fault once on one idle link, and write what came of it to a file for c4bench"
    )
    parser.add_argument("targets", nargs="+", metavar="TARGET", help="a NIC or port that no job uses: h5/0, leaf0/up1")
    parser.add_argument("--hosts", type=Path, required=True, metavar="INVENTORY", help="an Ansible inventory in YAML")
    parser.add_argument(
        "--output", type=Path, default=Path("first-light.json"), metavar="FILE", help="the file (first-light.json)"
    )
    parser.add_argument("--lease", default="30s", metavar="TIME", help="the longest that each fault may last (30s)")
    parser.add_argument("--last-nic", action="store_true", help="also cut off a host's only NIC, for seconds")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    inventory = load(arguments.hosts)
    lease_s = float(catalogue.value("first-light", "--lease", _LEASE, arguments.lease))
    targets = [(word, places.parse(word, inventory)) for word in arguments.targets]
    injector = Injector(
        connect=lambda host: remote.connect(host, inventory.access[host]),
        python=lambda host: inventory.access[host].python,
        hosts=inventory.hosts,
    )
    found = first_light(
        injector,
        targets,
        lambda host: remote.connect(host, inventory.access[host]),
        lambda host: inventory.access[host].python,
        [*(host.name for host in inventory.hosts), *inventory.switches],
        lease_s,
        print_line,
        last_nic=bool(arguments.last_nic),
    )
    content = msgspec.json.format(msgspec.json.encode(found), indent=2)
    try:
        files.replace(arguments.output, [content + b"\n"])
    except OSError as error:
        raise UnhealthyError(f"{arguments.output} cannot be written: {error.strerror}") from None
    failed = sum(one.outcome == "failed" for tried in found.tried.values() for one in tried)
    print_line(f"wrote {arguments.output}; read it before you send it: it should name nothing of yours")
    return UnhealthyError.exit_code if failed else 0


def print_line(line: str) -> None:
    """Print a line about what hosts have answered."""
    sys.stdout.write(one_line(line, 4000) + "\n")
    sys.stdout.flush()
