"""A YAML file with the line numbers of its keys."""

from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import yaml

from c4bench.decoding import DecodingError, YamlLoader, decoding
from c4bench.errors import UsageError

Keys = Sequence[str | int]
_MERGE = "tag:yaml.org,2002:merge"


class _Loader(YamlLoader):
    """Refuses a duplicate key, of which PyYAML would silently keep the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key, _ in node.value:
            if key.tag == _MERGE:
                continue
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "a key is not a single word", key.start_mark)
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} is given twice", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _opaque(_loader: _Loader, node: yaml.ScalarNode) -> str:
    return str(node.value)


for _tag in ("!vault", "!unsafe"):  # Ansible's own tags; their values are not needed here
    _Loader.add_constructor(_tag, _opaque)


class Document:
    """The data of a YAML file, and errors about it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.content = _read(path)
        try:
            with decoding():
                self.data = yaml.load(self.content, _Loader)  # noqa: S506  (a SafeLoader)
        except DecodingError as error:
            where = f"{path}:{error.line}" if error.line else f"{path}"
            raise UsageError(f"{where}: not valid YAML: {error}; correct that line") from None

    def mapping(self, value: object, keys: Keys = ()) -> dict[str, Any]:
        """`value`, found at `keys`, as a mapping; None is an empty one. Raises UsageError."""
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self.error(
                keys, f"expected a mapping, got a {type(value).__name__}; write `name:` lines, one for each entry"
            )
        return {str(key): below for key, below in value.items()}

    def error(self, keys: Keys, problem: str) -> UsageError:
        """The error about the value at `keys`: file, line and key path, then the problem."""
        return located(str(self.path), self.content, keys, problem)


def located(where: str, content: str | bytes, keys: Keys, problem: str) -> UsageError:
    """The error about the value at `keys` of valid YAML from the file `where`: file, line and key path, the problem."""
    return UsageError(f"{where}:{_line(content, keys)}: {dotted(keys)}: {problem}" if keys else f"{where}: {problem}")


def _line(content: str | bytes, keys: Keys) -> int:
    """The line, from 1, of the value at `keys`, or of the last of its keys that is there."""
    node = yaml.compose(content, _Loader)
    line = 0
    for key in keys:
        below = _child(node, key)
        if below is None:
            break
        line, node = below
    return line + 1


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file; give the path of an Ansible inventory") from None
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; make it readable") from None


def _child(node: yaml.Node | None, key: str | int) -> tuple[int, yaml.Node] | None:
    """The line (from 0) and the node at `key`."""
    if isinstance(node, yaml.MappingNode):
        for name, value in node.value:
            if name.value == str(key):
                return name.start_mark.line, value
    if isinstance(node, yaml.SequenceNode) and isinstance(key, int) and key < len(node.value):
        below = node.value[key]
        return below.start_mark.line, below
    return None


def dotted(keys: Keys) -> str:
    """`("all", "nics", 0)` -> `all.nics[0]`."""
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys).lstrip(".")
