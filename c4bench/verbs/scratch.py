"""QPs without a peer, for trials."""

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from c4bench.verbs.path import PathAttributes
from c4bench.verbs.path_control import OpenDevice, OpenEndpoint
from c4bench.verbs.transport import BRISK, Remote

# An unassigned address of the Local Network Control Block (RFC 5771), which routers must not forward; the hop limit of
# 1 ensures that.
NOBODY = "::ffff:224.0.0.120"
_ONE_HOP = msgspec.structs.replace(BRISK, name="scratch", hop_limit=1)


@contextmanager
def to_itself(device: OpenDevice) -> Iterator[OpenEndpoint]:
    """An endpoint connected to itself, in RTS. Do not post to it."""
    with device.connection(_ONE_HOP, 1, 1) as endpoint:
        endpoint.connect_by(_own(device, endpoint))
        yield endpoint


@contextmanager
def to_nobody(device: OpenDevice, path: PathAttributes) -> Iterator[OpenEndpoint]:
    """An endpoint whose packets leave on the link and reach no host: link-local multicast needs no neighbour entry."""
    with device.connection(_ONE_HOP, 1, 1) as endpoint:
        endpoint.connect_by(Remote(NOBODY, endpoint.qp_num), path)
        yield endpoint


def _own(device: OpenDevice, endpoint: OpenEndpoint) -> Remote:
    return msgspec.structs.replace(device.here(), qp=endpoint.qp_num)
