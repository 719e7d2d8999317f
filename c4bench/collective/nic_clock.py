"""A NIC's virtual time, shared equally among the connections that transfer at once.

Transfers that run together slow each other down although the NIC is no slower. So every moment is divided equally among
the connections in transfer: the virtual time of processor sharing (Parekh and Gallager, "A generalized processor
sharing approach to flow control", 1993). A connection's shares sum to the time that its transfers would have taken
alone, and all connections' shares to the time that the NIC was busy.
"""

from dataclasses import dataclass


@dataclass(slots=True)
class NicClock:
    """Runs while any connection of a NIC is in transfer, slower the more there are. All times are in ns."""

    _carried: int = 0
    _share_ns: float = 0.0
    _since_ns: int = 0

    def reads(self, now_ns: int) -> float:
        """The clock: a connection in transfer between two readings gets their difference. `now_ns` never decreases."""
        if self._carried:
            self._share_ns += (now_ns - self._since_ns) / self._carried
        self._since_ns = now_ns
        return self._share_ns

    def carry(self, more: int, now_ns: int) -> None:
        """Add `more` connections in transfer from now on; negative to remove some."""
        self.reads(now_ns)
        self._carried += more
