"""Decode what somebody else has written: whatever is wrong with it, a `DecodingError` says so in one line.

`msgspec`, PyYAML, `json` and `int` raise many kinds of errors: for what is no text, for deep nesting, for a 13th month,
for a number of 5,000 digits. Nothing but `decoding` turns them into ours.
"""

import re
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec
import yaml

from c4bench.errors import UsageError
from c4bench.foreign_text import one_line

T = TypeVar("T")
# The digits of a 64-bit integer.
_MOST_DIGITS = 20
# ValueError has UnicodeError, OverflowError is what a number gives that is too large for its type.
_DECODING = (msgspec.MsgspecError, yaml.YAMLError, ValueError, RecursionError, OverflowError, struct.error, zlib.error)
_LONGEST_REASON = 300
# Lines before the JSON text that a command prints may begin as JSON does (`[WARN]`); so many lines are tried.
_MOST_STARTS = 20
_SURROGATE = re.compile("[\ud800-\udfff]")
# PyYAML takes time by the square of the depth. Of nodes, one counts as often as aliases repeat it.
_DEEPEST_YAML, _MOST_YAML_NODES = 64, 1_000_000


class DecodingError(UsageError):
    """What somebody wrote cannot be decoded: why, and in which `line` (from 1; None where that is not known)."""

    def __init__(self, reason: str, line: int | None = None) -> None:
        self.line = line
        super().__init__(reason)


@contextmanager
def decoding() -> Iterator[None]:
    """Within the block, every error that decoding raises becomes a DecodingError, in one line of printable text."""
    try:
        yield
    except RecursionError:
        raise DecodingError("it is nested too deeply") from None
    except _DECODING as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else None
        text = _yaml_problem(error, line) if isinstance(error, yaml.MarkedYAMLError) and line else str(error)
        raise DecodingError(one_line(" ".join(text.split()), _LONGEST_REASON) or type(error).__name__, line) from None


def _yaml_problem(error: yaml.MarkedYAMLError, line: int) -> str:
    """What is wrong, while what was read, and where."""
    return f"{f'{error.context}: ' if error.context else ''}{error.problem} in line {line}"


class YamlLoader(yaml.SafeLoader):
    """Loads plain data. Raises YAMLError for what is nested too deeply, and for aliases that repeat too much."""

    def __init__(self, stream: str | bytes) -> None:
        super().__init__(stream)
        self._nodes = 0
        self._sizes: dict[int, int] = {}

    def fetch_flow_collection_start(self, token: Any) -> None:  # noqa: ANN401  (PyYAML's classes of tokens)
        """Begin a list or mapping in brackets."""
        self._check_depth(self.flow_level)
        super().fetch_flow_collection_start(token)

    def add_indent(self, column: int) -> bool:
        """Begin a list or mapping by its indentation."""
        self._check_depth(len(self.indents))
        return bool(super().add_indent(column))

    def _check_depth(self, depth: int) -> None:
        if depth >= _DEEPEST_YAML:
            raise yaml.scanner.ScannerError(None, None, "it is nested too deeply", self.get_mark())

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:  # noqa: ANN401  (key or number)
        """The next node, which is counted."""
        before, mark = self._nodes, self.peek_event().start_mark  # type: ignore[no-untyped-call]
        is_alias = self.check_event(yaml.AliasEvent)
        node = super().compose_node(parent, index)
        if not is_alias:
            self._nodes += 1
            self._sizes[id(node)] = self._nodes - before
        elif id(node) in self._sizes:
            self._nodes += self._sizes[id(node)]
        else:
            raise yaml.composer.ComposerError(None, None, "an alias stands within what it repeats", mark)
        if isinstance(node, yaml.ScalarNode) and _SURROGATE.search(node.value):
            raise yaml.composer.ComposerError(None, None, "half of a surrogate pair is no character", mark)
        if self._nodes > _MOST_YAML_NODES:
            raise yaml.composer.ComposerError(None, None, "its aliases repeat too much", mark)
        return node


def from_yaml(text: str | bytes, kind: type[T] = object) -> T:  # type: ignore[assignment]
    """The `kind` in YAML text, by default data of plain types of any form. Raises DecodingError."""
    with decoding():
        data = yaml.load(text, YamlLoader)  # noqa: S506  (a SafeLoader)
        return data if kind is object else msgspec.convert(data, kind)


def from_json(data: str | bytes, kind: type[T]) -> T:
    """The `kind` in JSON text. Raises DecodingError."""
    with decoding():
        return msgspec.json.decode(data, type=kind)


def from_msgpack(data: bytes | msgspec.Raw, kind: type[T]) -> T:
    """The `kind` in MessagePack. Raises DecodingError."""
    with decoding():
        return msgspec.msgpack.decode(data, type=kind)


def json_in(output: str | bytes, kind: type[T]) -> T:
    """The `kind` in the JSON text that a command printed, which lines of other text may stand before.

    It begins with the first line from which all that follows can be decoded. Raises DecodingError.
    """
    with decoding():
        text = output.decode() if isinstance(output, bytes) else output
    lines = text.splitlines(keepends=True)
    starts = [number for number, line in enumerate(lines) if line.lstrip().startswith(("{", "["))]
    problem: DecodingError | None = None
    for start in starts[:_MOST_STARTS] or [0]:
        try:
            return from_json("".join(lines[start:]), kind)
        except DecodingError as error:
            problem = problem or error
    assert problem is not None
    raise problem


def whole_number(text: str) -> int:
    """The decimal integer in `text`, of 20 digits at most. Raises DecodingError."""
    digits = text.strip()
    if not digits.removeprefix("-").isdecimal() or len(digits) > _MOST_DIGITS:
        raise DecodingError(f"{one_line(digits, 40)!r} is no whole number of up to {_MOST_DIGITS} digits")
    return int(digits)
