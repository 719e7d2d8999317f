"""Choose the connection to a host."""

from c4bench.inventory import Access
from c4bench.remote.local import LocalConnection
from c4bench.remote.protocol import Connection
from c4bench.remote.ssh import SshConnection


def connect(host: str, access: Access) -> Connection:
    """A connection to `host`, opened when first used."""
    return LocalConnection(host) if access.connection == "local" else SshConnection(host, access)
