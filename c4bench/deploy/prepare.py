"""`python -m c4bench.deploy.prepare hosts.yml FOLDER`: make the bundle and certificates for playbooks/deploy.yml."""

import argparse
import datetime
import shlex
import sys
from pathlib import Path

from c4bench.deploy import authority, bundle
from c4bench.errors import C4Error, UsageError
from c4bench.inventory import Inventory, load

_CLOCKS_APART = datetime.timedelta(days=1)  # on a host whose clock is behind, the certificate must be valid already


def prepare(inventory: Inventory, directory: Path) -> dict[str, object]:
    """Make the bundle and missing certificates in `directory`, and return the variables for deploy.yml.

    Raises UnhealthyError when a package that agents need, or the authority's key, is missing here.
    """
    trust, names = directory / "trust", [host.name for host in inventory.hosts]
    make = authority.issue if (trust / "ca.pem").exists() else authority.establish
    make(trust, names, _valid_from())
    return {"c4_trust": str(trust.resolve()), "c4_bundle": str(bundle.build(directory).resolve())}


def main(argv: list[str] | None = None) -> int:
    """Prepare, and print the command that deploys."""
    parser = argparse.ArgumentParser(prog="python -m c4bench.deploy.prepare", description=__doc__)
    parser.add_argument("inventory", type=Path)
    parser.add_argument("directory", type=Path)
    parser.add_argument(
        "--rotate", nargs="+", default=[], metavar="NAME", help="replace the keys of hosts, or of `master`"
    )
    parser.add_argument(
        "--revoke", nargs="+", default=[], metavar="NAME", help="revoke the certificates of removed or lost hosts"
    )
    options = parser.parse_args(argv)
    try:
        inventory, trust = load(options.inventory), options.directory / "trust"
        known = {host.name for host in inventory.hosts}
        if known & set(options.revoke):
            name = min(known & set(options.revoke))
            raise UsageError(
                f"{name} is still in {options.inventory}; remove it there before you revoke it, or use --rotate"
            )
        for change, names in ((authority.rotate, options.rotate), (authority.revoke, options.revoke)):
            if names:
                change(trust, names, _valid_from())
        variables = prepare(inventory, options.directory)
    except C4Error as error:
        sys.stderr.write(f"c4bench: {error}\n")
        return error.exit_code
    arguments = shlex.join(word for name, value in variables.items() for word in ("-e", f"{name}={value}"))
    where = shlex.quote(str(options.inventory))
    sys.stdout.write(f"ansible-playbook -i {where} playbooks/deploy.yml {arguments} -e c4_master=ADDRESS\n")
    return 0


def _valid_from() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC) - _CLOCKS_APART


if __name__ == "__main__":
    raise SystemExit(main())
