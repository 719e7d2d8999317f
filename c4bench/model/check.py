"""What `c4bench doctor` has looked at."""

import msgspec


class Check(msgspec.Struct, frozen=True):
    """One thing looked at: what was found, and what to do when it is not as needed."""

    name: str
    ok: bool
    detail: str
    mend: str
