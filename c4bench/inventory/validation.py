"""Variables of an inventory, converted to the types that c4bench reads them as."""

import re
from collections.abc import Mapping
from typing import TypeVar

import msgspec

from c4bench.inventory.groups import Keys, Variable

Kind = TypeVar("Kind", bound=msgspec.Struct)
# The types of the tables below a variable, by key.
Tables = Mapping[str | int, type[msgspec.Struct]]
_LOCATION = re.compile(r" - at `(?:key in )?\$(.*)`$")
_STEP = re.compile(r"\[(\d+)\]|\.([^.\[]+)")
_UNKNOWN = re.compile(r"unknown field `(.*)`")


def convert(variable: Variable, kind: type[Kind], tables: Tables, who: str = "") -> Kind:
    """The variable's value. Raises UsageError naming file, line and key, and `who` has it."""
    try:
        return msgspec.convert(variable.value, kind)
    except msgspec.ValidationError as error:
        problem, below = _locate(str(error), kind, tables)
        raise variable.error(f"{problem}{who}", below) from None


def split(message: str) -> tuple[str, Keys]:
    """Split a validator's message into the problem and the keys of the value that has it."""
    match = _LOCATION.search(message)
    steps = tuple(name or int(number) for number, name in _STEP.findall(match[1] if match else ""))
    problem = _LOCATION.sub("", message)
    unknown = _UNKNOWN.search(problem)
    return problem[:1].lower() + problem[1:], (*steps, unknown[1]) if unknown else steps


def _locate(message: str, kind: type[msgspec.Struct], tables: Tables) -> tuple[str, Keys]:
    """Split the validator's message into the problem and the keys below the variable."""
    problem, steps = split(message)
    if _UNKNOWN.search(problem):
        known = tables.get(next((step for step in steps if step in tables), ""), kind).__struct_fields__
        return f"unknown key; there are {', '.join(known)}", steps
    return problem, steps
