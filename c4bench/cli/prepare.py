"""`c4bench prepare INVENTORY FOLDER`: make the bundle and certificates for playbooks/deploy.yml."""

import argparse
import datetime
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from c4bench.cli import Commands
from c4bench.deploy import authority
from c4bench.deploy.prepare import prepare, valid_from
from c4bench.errors import UsageError
from c4bench.inventory import load
from c4bench.resources import resource


def register(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser("prepare", help="make the agents' bundle and certificates, and print how to deploy")
    parser.add_argument("inventory", type=Path, metavar="INVENTORY", help="any Ansible inventory")
    parser.add_argument("directory", type=Path, metavar="FOLDER", help="where both are kept, such as ~/.config/c4bench")
    parser.add_argument(
        "--rotate", nargs="+", default=[], metavar="NAME", help="replace the keys of hosts, or of `master`"
    )
    parser.add_argument(
        "--revoke", nargs="+", default=[], metavar="NAME", help="revoke the certificates of removed or lost hosts"
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    inventory = load(arguments.inventory)
    _refuse_revoking(arguments.revoke, {host.name for host in inventory.hosts}, arguments.inventory)
    trust, since = arguments.directory / "trust", valid_from()
    _change(trust, arguments.rotate, arguments.revoke, since)
    variables = prepare(inventory, arguments.directory)
    words = shlex.join(word for name, value in variables.items() for word in ("-e", f"{name}={value}"))
    where, playbook = shlex.quote(str(arguments.inventory)), shlex.quote(str(_playbook()))
    sys.stdout.write(f"ansible-playbook -i {where} {playbook} {words} -e c4_master=ADDRESS\n")
    return 0


def _refuse_revoking(revoked: Sequence[str], known: set[str], path: Path) -> None:
    present = known & set(revoked)
    if present:
        raise UsageError(f"{min(present)} is still in {path}; remove it there before you revoke it, or use --rotate")


def _change(trust: Path, rotated: Sequence[str], revoked: Sequence[str], since: datetime.datetime) -> None:
    if rotated:
        authority.rotate(trust, rotated, since)
    if revoked:
        authority.revoke(trust, revoked, since)


def _playbook() -> Path:
    """The playbook, as seen from here: in a checkout `playbooks/deploy.yml`."""
    path = resource("playbooks", "deploy.yml")
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
