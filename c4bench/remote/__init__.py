"""Run commands on a host, over SSH or locally. The only importer of fabric."""

from c4bench.inventory import Access
from c4bench.remote.local import LocalConnection
from c4bench.remote.protocol import BARE_PYTHON, Completed, Connection, Session

__all__ = ["BARE_PYTHON", "Completed", "Connection", "Session", "connect"]


def connect(host: str, access: Access) -> Connection:
    """A connection to `host`, opened when first used."""
    if access.connection == "local":
        return LocalConnection(host)
    from c4bench.remote.ssh import SshConnection  # noqa: PLC0415  (fabric takes long to import)

    return SshConnection(host, access)
