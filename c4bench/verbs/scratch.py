"""Queue pairs for trying something out, without a peer."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

from c4bench.verbs.transport import BRISK, Remote

if TYPE_CHECKING:
    from collections.abc import Iterator

    from c4bench.verbs.device import Device
    from c4bench.verbs.endpoint import Endpoint
    from c4bench.verbs.path import PathAttributes

# An unassigned address of the Local Network Control Block (RFC 5771), which no router forwards; with a hop limit of 1
# for those that would.
_NOBODY = "::ffff:224.0.0.120"
_ONE_HOP = msgspec.structs.replace(BRISK, name="scratch", hop_limit=1)


@contextmanager
def to_itself(device: Device) -> Iterator[Endpoint]:
    """An endpoint connected to itself: in RTS, and never to be posted to."""
    with device.connection(_ONE_HOP, 1, 1) as endpoint:
        endpoint.connect_by(_own(device, endpoint))
        yield endpoint


@contextmanager
def to_nobody(device: Device, way: PathAttributes) -> Iterator[Endpoint]:
    """An endpoint whose packets go out on the link and to nobody: a link-local multicast address needs no neighbour."""
    with device.connection(_ONE_HOP, 1, 1) as endpoint:
        endpoint.connect_by(Remote(_NOBODY, endpoint.qp_num), way)
        yield endpoint


def _own(device: Device, endpoint: Endpoint) -> Remote:
    return msgspec.structs.replace(device.here(), qp=endpoint.qp_num)
