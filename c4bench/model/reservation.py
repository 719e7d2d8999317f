"""Who has reserved a host, as it is said to others. Whoever may reserve one may write these texts."""

from typing import Annotated

import msgspec
from msgspec import Meta

# The last second of the year 9999.
_LAST_S = 253_402_300_799.0
LONGEST_COMMAND = 500


class Claim(msgspec.Struct, frozen=True):
    """A reservation that is asked for: `ttl_s` after its client has gone it ends."""

    id: Annotated[str, Meta(max_length=64)] = ""
    user: Annotated[str, Meta(max_length=300)] = "somebody"
    command: Annotated[str, Meta(max_length=LONGEST_COMMAND + 10)] = ""
    ttl_s: Annotated[float, Meta(ge=0.0, le=86_400.0)] = 0.0


class Holder(Claim, frozen=True):
    """A reservation since `since_s` (host's clock)."""

    since_s: Annotated[float, Meta(ge=0.0, le=_LAST_S)] = 0.0
