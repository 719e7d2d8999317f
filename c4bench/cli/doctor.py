"""`c4bench doctor`: what this machine, or these hosts, can and cannot do, and the mend."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from c4bench.deploy.doctor import host_checks
from c4bench.inventory import load
from c4bench.lab.machine.checks import Check, local_checks

if TYPE_CHECKING:
    from c4bench.cli import Commands


def register(commands: "Commands") -> None:
    """Add the command."""
    parser = commands.add_parser(
        "doctor", help="what this machine or these hosts can do, and how to mend what they cannot"
    )
    parser.add_argument("--hosts", type=Path, metavar="INVENTORY", help="check these hosts instead of the embedded lab")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    checks: Sequence[Check] = host_checks(load(arguments.hosts)) if arguments.hosts else local_checks()
    width = max(len(check.name) for check in checks)
    for check in checks:
        mend = "" if check.ok else f"  -> {check.mend}"
        sys.stdout.write(f"{'ok ' if check.ok else 'BAD'}  {check.name:<{width}}  {check.detail}{mend}\n")
    return 0 if all(check.ok for check in checks) else 3
