"""Payloads: exact in every data type, and recognised element by element."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from c4bench.errors import UsageError
from c4bench.workload.payload import Payload

DTYPES = ("float32", "float64", "float16", ml_dtypes.bfloat16, "int32", "int64")
OPS = {"sum": np.sum, "min": np.min, "max": np.max, "avg": np.mean}

payloads = st.builds(Payload, st.integers(1, 16), st.integers(0, 1000))
dtypes = st.sampled_from(DTYPES)
counts = st.integers(1, 40_000)
firsts = st.integers(0, 100_000)


def given_by(payload, rank, count, dtype, first=0):
    array = np.empty(count, dtype)
    payload.fill(array, rank, first)
    return array


@given(payloads, dtypes, counts, firsts, st.sampled_from(list(OPS)))
def test_the_reduction_of_all_payloads_is_recognised_and_nothing_else(payload, dtype, count, first, op):
    """The exact reduction of all ranks' items, by numpy, is accepted, and one changed element is detected."""
    everything = [given_by(payload, rank, count, dtype, first).astype(np.int64) for rank in range(payload.size)]
    reduced = OPS[op](everything, axis=0)
    assert np.array_equal(reduced, reduced.astype(np.int64))
    array = reduced.astype(dtype)
    assert payload.exact_reduced(array, op, first) == count
    array[count // 2] += 1
    assert payload.exact_reduced(array, op, first) == count - 1


@given(payloads, dtypes, st.integers(0, 15))
def test_sums_stay_exact_on_the_way(payload, dtype, start):
    """Adding the ranks' items up one after another, beginning with any, loses nothing in the type's own arithmetic."""
    total = np.zeros(1000, dtype)
    for rank in range(payload.size):
        total += given_by(payload, (start + rank) % payload.size, 1000, dtype)
    assert payload.exact_reduced(total) == 1000


@given(payloads, dtypes)
def test_no_item_is_zero(payload, dtype):
    """Unwritten memory is never accepted as a payload or a reduction."""
    nothing = np.zeros(20_000, dtype)
    assert not any(payload.exact_input(nothing, rank) for rank in range(payload.size))
    assert not any(payload.exact_reduced(nothing, op) for op in OPS)


@given(st.builds(Payload, st.integers(2, 16)), st.sampled_from([64, 4096, 1 << 16, 1 << 20]), st.data())
def test_a_piece_from_elsewhere_shows(payload, distance, data):
    """Items of another index, rank or step mostly differ from the expected ones."""
    rank = data.draw(st.integers(0, payload.size - 1))
    own = given_by(payload, rank, 1000, "int32")
    other = (rank + 1) % payload.size
    assert payload.exact_input(own, rank) == 1000
    assert payload.exact_input(given_by(payload, rank, 1000, "int32", distance), rank) < 600
    assert payload.exact_input(own, other) == 0
    assert payload._replace(step=payload.step + 1).exact_input(own, rank) < 600


def test_more_ranks_than_a_type_can_sum_are_refused():
    """Where sums would be rounded, the error says which type and how many ranks."""
    with pytest.raises(UsageError, match="64 ranks are not exact in bfloat16"):
        given_by(Payload(64), 0, 10, ml_dtypes.bfloat16)
    assert Payload(64).exact_input(given_by(Payload(64), 5, 10, "float16"), 5) == 10
