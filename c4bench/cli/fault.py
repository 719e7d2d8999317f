"""`c4bench fault list|show`: the catalogue."""

import argparse
import sys
from typing import TYPE_CHECKING

import msgspec
import yaml

from c4bench.inject import catalogue

if TYPE_CHECKING:
    from c4bench.cli import Commands


def register(commands: "Commands") -> None:
    """Add the command."""
    parser = commands.add_parser("fault", help="the fault catalogue")
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    actions.add_parser("list", help="every fault, one a line").set_defaults(run=_list)
    show = actions.add_parser("show", help="what a fault does, needs and should lead to")
    show.add_argument("fault")
    show.set_defaults(run=_show)


def _list(_: argparse.Namespace) -> int:
    faults = catalogue.load().specs
    width = max(map(len, faults))
    for name, fault in sorted(faults.items()):
        sys.stdout.write(f"{name:<{width}}  {fault.summary}\n")
    return 0


def _show(arguments: argparse.Namespace) -> int:
    spec = catalogue.load().find(arguments.fault)
    sys.stdout.write(yaml.safe_dump(msgspec.to_builtins(spec), sort_keys=False, allow_unicode=True, width=100))
    return 0
