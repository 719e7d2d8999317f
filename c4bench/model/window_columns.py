"""The tables of windows as arrays; see `model.window` for their rows. Times are ns."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.void]
# The latest time that ns have room for.
_LATEST_S = 9e9


def _row(*columns: tuple[str, str]) -> "np.dtype[np.void]":
    """A row of these columns: a kind of number, and the names of the columns of this kind that follow each other."""
    return np.dtype([(name, kind) for kind, names in columns for name in names.split()])


OP_ROW = _row(("<u4", "caller call"), ("<i8", "seq size_bytes entered started finished awaits"))
CONN_ROW = _row(
    ("<i8", "end messages size_bytes wait_credit wait_data transfer shared last_progress"),
    ("<u4", "outstanding owed source_port state"),
    ("<i8", "state_since count"),
    ("<u8", "sum"),
)
ARRIVAL_ROW = _row(("<i8", "end messages count"), ("<u8", "sum"))


def rows(tables: Iterable[bytes], row: "np.dtype[np.void]") -> Rows:
    """The rows of tables, one after the other; they cannot be written to."""
    return np.frombuffer(b"".join(tables), row)


def lasting_ns(conns: Rows, ends_s: float | NDArray[np.float64]) -> NDArray[np.int64]:
    """What the states of connections have lasted when their windows end; 0 for one that is idle."""
    ends_ns = np.rint(np.clip(ends_s, -_LATEST_S, _LATEST_S) * 1e9).astype(np.int64)
    lasting: NDArray[np.int64] = np.where(conns["state"] > 0, np.maximum(ends_ns - conns["state_since"], 0), 0)
    return lasting
