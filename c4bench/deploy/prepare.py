"""Make the bundle and certificates for playbooks/deploy.yml."""

import datetime
from pathlib import Path

from c4bench.deploy import authority, bundle
from c4bench.inventory import Inventory

_CLOCKS_APART = datetime.timedelta(days=1)  # on a host whose clock is behind, the certificate must be valid already


def prepare(inventory: Inventory, directory: Path) -> dict[str, object]:
    """Make the bundle and missing certificates in `directory`, and return the variables for deploy.yml.

    Raises UnhealthyError when a package that agents need, or the authority's key, is missing here.
    """
    trust, names = directory / "trust", [host.name for host in inventory.hosts]
    make = authority.issue if (trust / "ca.pem").exists() else authority.establish
    make(trust, names, valid_from())
    return {"c4_trust": str(trust.resolve()), "c4_bundle": str(bundle.build(directory).resolve())}


def valid_from() -> datetime.datetime:
    """From when on new certificates are valid."""
    return datetime.datetime.now(datetime.UTC) - _CLOCKS_APART
