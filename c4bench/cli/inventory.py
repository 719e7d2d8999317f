"""`c4bench inventory check INVENTORY`: check an inventory, and list what it leaves to be discovered."""

import argparse
import sys
from pathlib import Path

import msgspec

from c4bench.cli import Commands
from c4bench.cli.shared import print_json
from c4bench.errors import UsageError
from c4bench.inventory import load
from c4bench.inventory.review import Review, review

_SHOWN = 8


def register(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser("inventory", help="check an inventory without contacting its hosts")
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    check = actions.add_parser("check", help="report contradictions and what is left out")
    check.add_argument(
        "inventory", type=Path, metavar="INVENTORY", help="any Ansible inventory: YAML, INI, directory, script, plugin"
    )
    check.add_argument("--json", action="store_true", help="print JSON as in reports/schema/inventory.schema.json")
    check.set_defaults(run=_check)


def _check(arguments: argparse.Namespace) -> int:
    report = review(load(arguments.inventory))
    if arguments.json:
        print_json(msgspec.json.encode(report))
    else:
        sys.stdout.writelines(f"{line}\n" for line in _lines(report))
    return UsageError.exit_code if report.problems else 0


def _lines(report: Review) -> list[str]:
    disruptive = (
        f"faults are permitted on {_some(report.disruptive)}" if report.disruptive else "no faults are permitted"
    )
    counts = f"{report.hosts} hosts, {report.nics} NICs, {report.switches} switches, {report.cables} cables"
    lines = [f"{counts}; {disruptive}"]
    lines += [f"BAD  {problem}" for problem in report.problems]
    by_gap: dict[tuple[str, ...], list[str]] = {}
    for host, left in report.unsaid.items():
        by_gap.setdefault(left, []).append(host)
    lines += [f"left out  {', '.join(left)}  ({_some(tuple(hosts))})" for left, hosts in by_gap.items()]
    if by_gap:
        lines.append("playbooks/discover.yml finds what is left out, and writes host_vars for you to review")
    return lines


def _some(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(names[:_SHOWN])}{more}"
