"""The fixed names that the machine's directories have in the lab.

Names are sent in commands and messages, and a longer name takes longer on the line: with the machine's names, the lab's
clock would depend on where a checkout is. Everything that is passed to the lab therefore goes through `inside` first.
"""

import re
from collections.abc import Collection

import msgspec

NAMES = "/c4"
CODE = f"{NAMES}/code"
ENVIRONMENT = f"{NAMES}/venv"
RUN = f"{NAMES}/run"


class Place(msgspec.Struct, frozen=True):
    """A directory of the machine and its name in the lab; changes outlast the lab only in a `writable` one."""

    machine: str
    lab: str
    writable: bool = False


def inside(text: str, places: Collection[Place]) -> str:
    """`text` with the machine's names of these directories, and of what lies in them, replaced by the lab's."""
    names = {place.machine: place.lab for place in places}
    # One directory may contain another: the longest name that matches is meant.
    longest_first = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    return re.sub(rf"(?<![\w./-])({longest_first})(?![\w.-])", lambda match: names[match[0]], text)
