"""`c4bench doctor`: check what this machine or the given hosts can do, and how to fix what they cannot."""

import argparse
import sys
from pathlib import Path

import msgspec

from c4bench.cli import Commands
from c4bench.doctor import look_at, overview
from c4bench.doctor.overview import document
from c4bench.doctor.switches import audit_all
from c4bench.errors import UnhealthyError
from c4bench.foreign_text import json_line, one_line
from c4bench.inventory import load
from c4bench.lab.machine.checks import local_checks

_LONGEST_LINE = 4000


def register(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "doctor", help="check what this machine or the given hosts can do, and how to fix what they cannot"
    )
    parser.add_argument("--hosts", type=Path, metavar="INVENTORY", help="check these hosts instead of this machine")
    parser.add_argument(
        "--json", action="store_true", help="print JSON; for hosts as in reports/schema/doctor.schema.json"
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    return _hosts(arguments) if arguments.hosts else _machine(arguments)


def _hosts(arguments: argparse.Namespace) -> int:
    inventory = load(arguments.hosts)
    found = document(inventory, look_at(inventory), audit_all(inventory))
    if arguments.json:
        sys.stdout.write(json_line(msgspec.json.encode(found)) + "\n")
    else:
        page = [*overview.lines(found.hosts), *overview.switch_lines(found.switches)]
        page += [f"BAD  {line}" for line in found.disagreements]
        page += overview.cable_lines(found) if inventory.graph else []
        sys.stdout.writelines(f"{one_line(line, _LONGEST_LINE)}\n" for line in page)
    return UnhealthyError.exit_code if any(report.bad for report in found.hosts) else 0


def _machine(arguments: argparse.Namespace) -> int:
    checks = local_checks()
    if arguments.json:
        sys.stdout.write(json_line(msgspec.json.encode(checks)) + "\n")
    width = max(len(check.name) for check in checks)
    for check in () if arguments.json else checks:
        advice = "" if check.ok else f"  -> {check.fix}"
        sys.stdout.write(f"{'ok ' if check.ok else 'BAD'}  {check.name:<{width}}  {check.detail}{advice}\n")
    return 0 if all(check.ok for check in checks) else UnhealthyError.exit_code
