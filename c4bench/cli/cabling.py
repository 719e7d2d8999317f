"""`c4bench topology import FILE`: the cables of another tool's file as a topology file of ours."""

import argparse
import sys
from pathlib import Path

from c4bench.cli import Commands
from c4bench.cli.shared import print_lines
from c4bench.errors import UsageError
from c4bench.files import replace
from c4bench.foreign_text import file_name
from c4bench.inventory import cabling
from c4bench.units import parse_rate

_LEAST_SCALE, _MOST_SCALE = 1e-4, 1e3


def add_import(actions: Commands) -> None:
    """Add `import`."""
    action = actions.add_parser(
        "import", help="write the cables of another tool's file as a topology file (docs/reference/cabling.md)"
    )
    action.add_argument(
        "file", type=Path, metavar="FILE", help="Graphviz, ibnetdiscover, Slurm, containerlab, CSV, ..."
    )
    action.add_argument("-o", "--out", type=Path, metavar="OUT.yml", help="write this file instead of printing it")
    action.add_argument(
        "--hosts", default="", metavar="PATTERNS", help="which nodes are hosts, such as 'gpu*,io*', if not as stated"
    )
    action.add_argument("--rate", default="", metavar="RATE", help="of cables without a stated speed, such as 200gbit")
    action.add_argument(
        "--scale", type=float, default=1.0, metavar="FACTOR", help="multiply all rates, such as by 0.1 for a lab"
    )
    action.set_defaults(run=_import)


def _import(arguments: argparse.Namespace) -> int:
    rate_bps = parse_rate(arguments.rate) if arguments.rate else 0.0
    if not _LEAST_SCALE <= arguments.scale <= _MOST_SCALE:
        raise UsageError(f"--scale {arguments.scale:g}: give {_LEAST_SCALE:g} to {_MOST_SCALE:g}")
    wiring = cabling.read(arguments.file)
    try:
        wiring = cabling.with_roles(wiring, [word for word in arguments.hosts.split(",") if word])
        wiring = cabling.checked(wiring, rate_bps)
    except UsageError as error:
        raise UsageError(f"{file_name(arguments.file)} ({wiring.kind}): {error}") from None
    text = cabling.document(wiring, str(arguments.file), rate_bps, arguments.scale)
    if arguments.out is None:
        sys.stdout.write(text)
        return 0
    try:
        replace(arguments.out, [text.encode()])
    except OSError as error:
        raise UsageError(f"{file_name(arguments.out)}: {error.strerror}; give a file that can be written") from None
    counts = f"{len(cabling.hosts_of(wiring))} hosts, {len(cabling.switches_of(wiring))} switches, {len(wiring.wires)}"
    print_lines([f"{file_name(arguments.out)}: {counts} cables ({wiring.kind})", *wiring.notes])
    return 0
