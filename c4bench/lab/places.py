"""What the lab calls the machine's directories: fixed names, whatever they are called on the machine.

Names travel in commands and messages, and a byte more takes longer on the line: were they the machine's, the lab's
clock would tell where a checkout lies. So whatever is told to the lab goes through `inside` first.
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
    # One directory may lie in another: the longest name tells which is meant.
    longest_first = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    return re.sub(rf"(?<![\w./-])({longest_first})(?![\w.-])", lambda match: names[match[0]], text)
