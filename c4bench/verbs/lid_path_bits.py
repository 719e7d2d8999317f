"""InfiniBand's LID path bits as a knob."""

from __future__ import annotations

from typing import TYPE_CHECKING

from c4bench.verbs.addressing import INFINIBAND
from c4bench.verbs.path import PathAttributes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from c4bench.verbs.device import Device
    from c4bench.verbs.endpoint import Endpoint

# An LMC has three bits.
_MOST = 1 << 7


class PathBits:
    """A port with LMC m answers to 2^m LIDs, and subnet managers route them apart.

    Both ends' LIDs get the same bits, so both ports are taken to have the same LMC (InfiniBand Architecture
    Specification, volume 1, 7.11).
    """

    chooses = "LID path bits"

    def obstacle(self, device: Device) -> str:
        """What the port says of its link layer and its LMC."""
        status = device.status()
        if status.link_layer != INFINIBAND:
            return f"its link layer is {status.link_layer}"
        return "" if status.lmc else "its LMC is 0: the subnet manager gave it a single LID"

    def choices(self, device: Device) -> Sequence[int]:
        """All bits that the LMC leaves free."""
        return range(1, 1 << device.status().lmc)

    def way(self, choice: int) -> PathAttributes:
        """The bits themselves."""
        if not 0 <= choice < _MOST:
            raise ValueError(f"{choice} are no LID path bits: an LMC is at most 7")
        return PathAttributes(path_bits=choice)

    def settle(self, endpoint: Endpoint, choice: int) -> None:
        """Nothing is left to do: the bits are in the address vector."""

    def move(self, endpoint: Endpoint, choice: int) -> None:
        """Give the live connection other bits."""
        endpoint.readdress(self.way(choice))

    def source_port(self, endpoint: Endpoint) -> int:  # noqa: ARG002
        """InfiniBand has none."""
        return 0
