"""Jobs that wait for each other."""

import msgspec


class Meeting(msgspec.Struct, frozen=True):
    """Ranks of several jobs, `size` in all, that wait for each other so that what they measure happens together.

    The test may be one of them. Jobs are in the same meeting if their operators give them the same name.
    """

    name: str
    size: int
