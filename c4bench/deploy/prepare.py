"""`python -m c4bench.deploy.prepare hosts.yml FOLDER`: make what playbooks/deploy.yml wants."""

import argparse
import datetime
import shlex
import sys
from pathlib import Path

from c4bench.deploy import authority, bundle
from c4bench.errors import C4Error
from c4bench.inventory import Inventory, load

_CLOCKS_APART = datetime.timedelta(days=1)  # a host whose clock is behind must not find its certificate too young


def prepare(inventory: Inventory, directory: Path) -> dict[str, object]:
    """Make the hosts' certificates and the agent's bundle in `directory`; returns the variables that name them.

    Raises UnhealthyError when a package that agents need is missing here.
    """
    trust = directory / "trust"
    valid_from = datetime.datetime.now(datetime.UTC) - _CLOCKS_APART
    authority.establish(trust, [host.name for host in inventory.hosts], valid_from)
    return {"c4_trust": str(trust.resolve()), "c4_bundle": str(bundle.build(directory).resolve())}


def main(argv: list[str] | None = None) -> int:
    """Prepare, and say how to go on."""
    parser = argparse.ArgumentParser(prog="python -m c4bench.deploy.prepare", description=__doc__)
    parser.add_argument("inventory", type=Path)
    parser.add_argument("directory", type=Path)
    options = parser.parse_args(argv)
    try:
        variables = prepare(load(options.inventory), options.directory)
    except C4Error as error:
        sys.stderr.write(f"c4bench: {error}\n")
        return error.exit_code
    given = shlex.join(word for name, value in variables.items() for word in ("-e", f"{name}={value}"))
    inventory = shlex.quote(str(options.inventory))
    sys.stdout.write(f"ansible-playbook -i {inventory} playbooks/deploy.yml {given} -e c4_master=ADDRESS\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
