"""The one JSON encoding of everything recorded: equal values give equal bytes, on any machine."""

from typing import Any, TypeVar

import msgspec

from c4bench.decoding import DecodingError, from_json
from c4bench.errors import UsageError

T = TypeVar("T")


def encode(value: Any) -> bytes:  # noqa: ANN401  (any struct, mapping or list that msgspec can encode)
    """One line of JSON without its newline: structs in field order, mappings by sorted key, floats shortest exact.

    NaN and infinities become null.
    """
    return msgspec.json.encode(value, order="deterministic")


def decode(data: bytes, kind: type[T], source: str) -> T:
    """The `kind` in `data`. Raises UsageError that names `source` when it is something else."""
    try:
        return from_json(data, kind)
    except DecodingError as error:
        raise UsageError(f"{source} is not what c4bench records ({error}); restore it or run again") from None
