"""How outer gradients are coded when they are sent."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from c4bench.errors import UnhealthyError
from c4bench.workload.diloco.quantisation import BLOCK, CODECS

CODED = [name for name in CODECS if name != "none"]
VALUES = arrays(np.float32, st.integers(0, 3 * BLOCK), elements=st.floats(-1e6, 1e6, width=32), fill=st.just(0.5))


@pytest.mark.parametrize("name", CODED)
@given(values=VALUES)
def test_what_has_been_decoded_is_coded_without_loss(name, values):
    """Encoding is the inverse of decoding: values that the code can represent come back to the bit."""
    codec = CODECS[name]
    once = codec.decode(codec.encode(values), values.size)
    np.testing.assert_array_equal(codec.decode(codec.encode(once), values.size), once)


@given(values=VALUES)
def test_float32_is_sent_as_it_is(values):
    """Without quantisation every bit arrives."""
    codec = CODECS["none"]
    assert codec.decode(codec.encode(values), values.size).tobytes() == values.tobytes()


@pytest.mark.parametrize(("name", "levels"), [("int4", 7), ("int8", 127)])
@given(values=VALUES)
def test_integers_are_off_by_half_a_level_at_most(name, levels, values):
    """The error of int4 and int8 is at most half a level of the block's largest magnitude."""
    codec = CODECS[name]
    error = np.abs(codec.decode(codec.encode(values), values.size) - values.astype(np.float64))
    for begin in range(0, values.size, BLOCK):
        largest = float(np.abs(values[begin : begin + BLOCK]).max())
        assert (error[begin : begin + BLOCK] <= largest / levels / 2 * (1 + 1e-6)).all()


@given(values=VALUES)
def test_e3m0_is_off_by_a_third_at_most(values):
    """The error of E3M0 is at most a third of the value, or 2^-7 of the block's largest magnitude."""
    codec = CODECS["e3m0"]
    error = np.abs(codec.decode(codec.encode(values), values.size) - values.astype(np.float64))
    for begin in range(0, values.size, BLOCK):
        block = np.abs(values[begin : begin + BLOCK].astype(np.float64))
        assert (error[begin : begin + BLOCK] <= np.maximum(block / 3, block.max() / 128) * (1 + 1e-6)).all()


def test_e3m0_has_a_sign_three_bits_of_exponent_and_no_mantissa():
    """A block's values are 0, and 2^-6 to 1 of its largest magnitude with either sign; the codes are these bits."""
    values = np.array([1, -1, 0.5, -0.25, 1 / 64, 1 / 200, 0, 0.76, 0.74], np.float32) * np.float32(3)
    codec = CODECS["e3m0"]
    encoded = codec.encode(values)
    assert (codec.decode(encoded, 9) / 3).tolist() == [1, -1, 0.5, -0.25, 1 / 64, 0, 0, 1, 0.5]
    assert encoded[:4].view("<f4")[0] == 3
    assert encoded[4:].tolist() == [7 | 15 << 4, 6 | 13 << 4, 1 | 0 << 4, 0 | 7 << 4, 6]


@pytest.mark.parametrize("name", CODECS)
@given(count=st.integers(0, 3 * BLOCK))
def test_lengths_are_known_beforehand(name, count):
    """Four bits take half a byte per value and four bytes per block of 1024, which a receiver relies on."""
    codec = CODECS[name]
    encoded = codec.encode(np.ones(count, np.float32))
    scales = 0 if name == "none" else 4 * -(-count // 1024)
    assert encoded.size == codec.encoded_bytes(count) == scales + -(-count * codec.bits // 8)


@pytest.mark.parametrize("name", CODED)
def test_blocks_have_scales_of_their_own(name):
    """A block of tiny values keeps them beside one of large values, and zeros stay zeros."""
    values = np.repeat(np.array([1e3, 1e-9, 0], np.float32), BLOCK)
    codec = CODECS[name]
    np.testing.assert_array_equal(codec.decode(codec.encode(values), values.size), values)


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_diverged_training_is_not_sent(name, bad):
    """A value that is not finite would spoil a whole block at every site: it is an error that says what to do."""
    with pytest.raises(UnhealthyError, match="not finite: training has diverged; lower"):
        CODECS[name].encode(np.array([1, bad], np.float32))


def test_cut_data_are_refused():
    """A message of another length is an error, not other numbers."""
    codec = CODECS["int4"]
    with pytest.raises(UnhealthyError, match="8 bytes are not 10 values, which take 9"):
        codec.decode(np.zeros(8, np.uint8), 10)
