"""A NIC's time, shared among what it carries at once.

Transfers that are under way together wait for each other: each takes longer, and the NIC is no slower. So every moment
is shared equally among the connections in transfer, the virtual time of processor sharing (Parekh and Gallager, "A
generalized processor sharing approach to flow control", 1993). A connection's shares add up to what its transfers would
have taken alone, and all connections' to the time that the NIC was busy.
"""

from dataclasses import dataclass


@dataclass(slots=True)
class NicClock:
    """Runs while any connection of a NIC is in transfer, the slower the more there are. All times are ns."""

    _carried: int = 0
    _share_ns: float = 0.0
    _since_ns: int = 0

    def reads(self, now_ns: int) -> float:
        """Each that has been in transfer since it read less has had the difference; `now_ns` never falls."""
        if self._carried:
            self._share_ns += (now_ns - self._since_ns) / self._carried
        self._since_ns = now_ns
        return self._share_ns

    def carry(self, more: int, now_ns: int) -> None:
        """So many more are in transfer from now on, or fewer."""
        self.reads(now_ns)
        self._carried += more
