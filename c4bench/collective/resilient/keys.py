"""Memory registered with every NIC of a rank, and its address and keys on each."""

from collections.abc import Sequence

from c4bench.collective.memory import Registered


class Keyring:
    """Registrations of an operation's arrays with all NICs; messages carry a handle instead of the keys."""

    def __init__(self) -> None:
        self._handles: dict[tuple[int, ...], int] = {}
        self._registered: list[tuple[Registered, ...]] = []

    def clear(self) -> None:
        """Forget the last operation's registrations."""
        self._handles.clear()
        self._registered.clear()

    def add(self, registered: Sequence[Registered]) -> int:
        """A handle for memory registered with every NIC, in their order. It is never 0, which means no memory."""
        key = tuple(each.region.rkey for each in registered)
        if key not in self._handles:
            self._registered.append(tuple(registered))
            self._handles[key] = len(self._registered)
        return self._handles[key]

    def local(self, handle: int, nic: int, address: int) -> tuple[int, int]:
        """The address and the local key for a NIC."""
        if not handle:
            return 0, 0
        region, shift = self._registered[handle - 1][nic]
        return address + shift, region.lkey

    def places(self, handle: int, address: int, nics: int) -> list[tuple[int, int]]:
        """The address and the remote key for each NIC."""
        if not handle:
            return [(0, 0)] * nics
        return [(address + shift, region.rkey) for region, shift in self._registered[handle - 1]]
