"""A check of `c4bench doctor` on this machine."""

import msgspec


class Check(msgspec.Struct, frozen=True):
    """One check: what was found, and the `fix` for when it is not as needed."""

    name: str
    ok: bool
    detail: str
    fix: str
