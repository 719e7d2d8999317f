"""The offset between two clocks."""

import msgspec


class ClockOffset(msgspec.Struct, frozen=True):
    """A host's clock against ours: it reads `offset_s` more than ours does, give or take `error_s`."""

    offset_s: float = 0.0
    error_s: float = 0.0

    def ours(self, time_s: float) -> float:
        """A time of that clock on ours; unchanged where the exchange cannot tell the two apart."""
        return time_s if abs(self.offset_s) <= self.error_s else time_s - self.offset_s
