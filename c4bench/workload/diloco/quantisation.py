"""How an outer gradient is coded when it is sent: 4 bits (E3M0 or int4), 8 bits (int8), or float32 as it is.

Values are coded in blocks of `BLOCK`. Each block has a scale, its largest magnitude, as float32; a value is coded as a
sign and the index of a magnitude, a share of the scale. An encoded array is the scales, then the codes; 4-bit codes are
packed two per byte, the first in the low bits. Sums are never formed of codes: `decode` returns float32.

E3M0 (Douillard et al., arXiv 2501.18512) has a sign, 3 bits of exponent and no mantissa. The paper states neither bias,
scale nor rounding. Here exponent 0 is zero, and exponents 1 to 7 are 2^-6 to 1 of the block's scale, so that the
largest magnitude is exact and six octaves below it can be told apart. Rounding is to the nearest value, ties towards
zero: the error is at most a third of the value, or 2^-7 of the scale.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from c4bench.errors import UnhealthyError

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]
Name = Literal["e3m0", "int4", "int8", "none"]

BLOCK = 1024
_SCALE_BYTES = 4
_LITTLE = np.dtype("<f4")


@dataclass(frozen=True)
class Codec:
    """A code of `bits` bits per value: a sign above the index of one of the `magnitudes`, which ascend from 0 to 1.

    Without magnitudes, values are sent as float32.
    """

    bits: int
    magnitudes: tuple[float, ...]

    def encoded_bytes(self, count: int) -> int:
        """The length of `count` encoded values."""
        if not self.magnitudes:
            return count * _LITTLE.itemsize
        return _blocks(count) * _SCALE_BYTES + (count * self.bits + 7) // 8

    def encode(self, values: Floats) -> Bytes:
        """Encode a flat array. Raises UnhealthyError if a value is not finite."""
        if not np.isfinite(values).all():
            raise UnhealthyError("the outer gradient is not finite: training has diverged; lower the learning rates")
        if not self.magnitudes:
            return values.astype(_LITTLE).view(np.uint8)
        blocks = np.zeros((_blocks(values.size), BLOCK))
        blocks.reshape(-1)[: values.size] = values
        scales = np.abs(blocks).max(axis=1, keepdims=True)
        shares = np.abs(blocks) / np.where(scales > 0, scales, 1)
        levels = np.array(self.magnitudes)
        index = np.searchsorted((levels[1:] + levels[:-1]) / 2, shares.reshape(-1)[: values.size])
        codes = (index | (values < 0) << (self.bits - 1)).astype(np.uint8)
        return np.concatenate([scales.astype(_LITTLE).view(np.uint8).reshape(-1), self._pack(codes)])

    def decode(self, data: Bytes, count: int) -> Floats:
        """The `count` values of an encoded array. Raises UnhealthyError if it has another length."""
        if data.size != self.encoded_bytes(count):
            raise UnhealthyError(f"{data.size} bytes are not {count} values, which take {self.encoded_bytes(count)}")
        if not self.magnitudes:
            return np.frombuffer(data.tobytes(), _LITTLE).astype(np.float32)
        cut = _blocks(count) * _SCALE_BYTES
        scales = np.frombuffer(data[:cut].tobytes(), _LITTLE).astype(np.float64)
        values = np.array(self.magnitudes + tuple(-share for share in self.magnitudes))
        shares = values[self._unpack(data[cut:], count)]
        return (shares * np.repeat(scales, BLOCK)[:count]).astype(np.float32)

    def _pack(self, codes: Bytes) -> Bytes:
        if self.bits == 8:
            return codes
        pairs = np.zeros((codes.size + 1) // 2 * 2, np.uint8)
        pairs[: codes.size] = codes
        packed: Bytes = np.bitwise_or(pairs[::2], pairs[1::2] << 4)
        return packed

    def _unpack(self, packed: Bytes, count: int) -> Bytes:
        if self.bits == 8:
            return packed
        return np.stack([packed & 0xF, packed >> 4], axis=1).reshape(-1)[:count]


def _blocks(count: int) -> int:
    return -(-count // BLOCK)


CODECS: dict[Name, Codec] = {
    "e3m0": Codec(4, (0.0, *(2.0 ** (exponent - 7) for exponent in range(1, 8)))),
    "int4": Codec(4, tuple(index / 7 for index in range(8))),
    "int8": Codec(8, tuple(index / 127 for index in range(128))),
    "none": Codec(32, ()),
}
