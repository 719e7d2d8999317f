"""Decode text that somebody else has written: whatever is wrong with it, one kind of error says so.

`msgspec` and PyYAML raise others besides their own: for what is no text, for deep nesting, for a 13th month.
"""

from typing import TypeVar

import msgspec
import yaml

T = TypeVar("T")


def from_yaml(text: str | bytes) -> object:
    """The data in `text`, of plain types only. Raises yaml.YAMLError."""
    try:
        return yaml.safe_load(text)
    except RecursionError:
        raise yaml.YAMLError("it is nested too deeply") from None
    except ValueError as error:
        raise yaml.YAMLError(str(error)) from None


def from_json(data: str | bytes, kind: type[T]) -> T:
    """The `kind` in `data`. Raises msgspec.DecodeError."""
    try:
        return msgspec.json.decode(data, type=kind)
    except RecursionError:
        raise msgspec.DecodeError("it is nested too deeply") from None
    except UnicodeError as error:
        raise msgspec.DecodeError(str(error)) from None
