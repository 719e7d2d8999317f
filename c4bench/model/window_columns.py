"""The tables of windows as arrays; see `model.window` for their rows. Times are ns."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.void]
# The latest time that ns have room for.
_LATEST_S = 9e9
OP_ROW = np.dtype(
    [
        ("caller", "<u4"),
        ("call", "<u4"),
        ("seq", "<i8"),
        ("size_bytes", "<i8"),
        ("entered", "<i8"),
        ("started", "<i8"),
        ("finished", "<i8"),
        ("awaits", "<i8"),
    ]
)
CONN_ROW = np.dtype(
    [
        ("end", "<i8"),
        ("messages", "<i8"),
        ("size_bytes", "<i8"),
        ("wait_credit", "<i8"),
        ("wait_data", "<i8"),
        ("transfer", "<i8"),
        ("shared", "<i8"),
        ("last_progress", "<i8"),
        ("outstanding", "<u4"),
        ("owed", "<u4"),
        ("source_port", "<u4"),
        ("state", "<u4"),
        ("state_since", "<i8"),
        ("count", "<i8"),
        ("sum", "<u8"),
    ]
)
ARRIVAL_ROW = np.dtype([("end", "<i8"), ("messages", "<i8"), ("count", "<i8"), ("sum", "<u8")])


def rows(tables: Iterable[bytes], row: "np.dtype[np.void]") -> Rows:
    """The rows of tables, one after the other; they cannot be written to."""
    return np.frombuffer(b"".join(tables), row)


def lasting_ns(conns: Rows, ends_s: float | NDArray[np.float64]) -> NDArray[np.int64]:
    """What the states of connections have lasted when their windows end; 0 for one that is idle."""
    ends_ns = np.rint(np.clip(ends_s, -_LATEST_S, _LATEST_S) * 1e9).astype(np.int64)
    lasting: NDArray[np.int64] = np.where(conns["state"] > 0, np.maximum(ends_ns - conns["state_since"], 0), 0)
    return lasting
