"""`c4bench doctor`: check what this machine or the given hosts can do, and how to fix what they cannot."""

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

import msgspec

from c4bench.cli import Commands
from c4bench.cli.shared import print_json, print_lines
from c4bench.doctor import overview
from c4bench.doctor.capabilities import Report
from c4bench.doctor.files import judge_files
from c4bench.doctor.files import lines as saved_lines
from c4bench.doctor.hosts import look_at
from c4bench.doctor.overview import document
from c4bench.doctor.switches import ask_all
from c4bench.errors import InconclusiveError, UnhealthyError, UsageError
from c4bench.foreign_text import one_line
from c4bench.inventory import load
from c4bench.lab.machine.checks import local_checks

_LONGEST_LINE = 4000
_NAMED = 4  # as many hosts that are waited for are named


def register(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "doctor", help="check what this machine or the given hosts can do, and how to fix what they cannot"
    )
    parser.add_argument("--hosts", type=Path, metavar="INVENTORY", help="check these hosts instead of this machine")
    parser.add_argument(
        "--files",
        type=Path,
        nargs="+",
        metavar="PATH",
        help="judge saved outputs of hosts and switches instead (docs/reference/doctor-files.md)",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print JSON; for hosts as in reports/schema/doctor.schema.json, for files as in saved.schema.json",
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    if arguments.files and arguments.hosts:
        raise UsageError("--files judges saved outputs, and --hosts asks hosts: give one of them")
    if arguments.files:
        return _files(arguments)
    return _hosts(arguments) if arguments.hosts else _machine(arguments)


def _files(arguments: argparse.Namespace) -> int:
    """Judge saved outputs. That nothing of them could be judged is not health, and has a code of its own."""
    missing = [path for path in arguments.files if not path.exists()]
    if missing:
        raise UsageError(f"--files {missing[0]}: no such file or folder")
    found = judge_files(arguments.files)
    if arguments.json:
        print_json(msgspec.json.encode(found))
    else:
        print_lines(saved_lines(found), _LONGEST_LINE)
    if not found.used:
        raise InconclusiveError("nothing in these files is an output that is judged; docs/reference/doctor-files.md")
    return UnhealthyError.exit_code if found.bad else 0


class Answered:
    """Prints to stderr what each of these hosts lacks as soon as it has answered, and which are waited for."""

    def __init__(self, hosts: Iterable[str]) -> None:
        self._left = dict.fromkeys(hosts)

    def __call__(self, report: Report) -> None:
        """Print a line about a host; called by several threads."""
        self._left.pop(report.host)
        left = tuple(self._left)
        bad = [f"BAD {one.name}: {one.detail}" for one in report.bad]
        waiting = [f"waiting for {', '.join(left)}" if len(left) <= _NAMED else f"waiting for {len(left)} more"]
        line = "; ".join([f"{report.host}: {', '.join(bad) or 'ok'}", *(waiting if left else ())])
        sys.stderr.write(one_line(line, _LONGEST_LINE) + "\n")


def _hosts(arguments: argparse.Namespace) -> int:
    inventory = load(arguments.hosts)
    answered = Answered(host.name for host in inventory.hosts)
    found = document(inventory, look_at(inventory, answered=answered), ask_all(inventory))
    if arguments.json:
        print_json(msgspec.json.encode(found))
    else:
        page = [*overview.lines(found.hosts), *overview.remark_lines(found.hosts)]
        page += overview.switch_lines(found.switches)
        page += [*overview.setting_lines(found), *(f"BAD  {line}" for line in found.disagreements)]
        page += overview.cable_lines(found) if inventory.graph else []
        print_lines(page, _LONGEST_LINE)
    return UnhealthyError.exit_code if found.bad else 0


def _machine(arguments: argparse.Namespace) -> int:
    checks = local_checks()
    if arguments.json:
        print_json(msgspec.json.encode(checks))
    width = max(len(check.name) for check in checks)
    for check in () if arguments.json else checks:
        advice = "" if check.ok else f"  -> {check.fix}"
        sys.stdout.write(f"{'ok ' if check.ok else 'BAD'}  {check.name:<{width}}  {check.detail}{advice}\n")
    return 0 if all(check.ok for check in checks) else UnhealthyError.exit_code
