"""Path control by InfiniBand's LID path bits."""

from collections.abc import Sequence

from c4bench.verbs.addressing import INFINIBAND
from c4bench.verbs.path import PathAttributes
from c4bench.verbs.path_control import OpenDevice, OpenEndpoint

# An LMC has three bits.
_MOST = 1 << 7


class PathBits:
    """A port with LMC m has 2^m LIDs, which subnet managers route on different paths.

    Both ends' LIDs get the same bits, so both ports must have the same LMC (InfiniBand Architecture Specification,
    volume 1, 7.11).
    """

    chooses = "LID path bits"

    def obstacle(self, device: OpenDevice) -> str:
        """Checks the port's link layer and its LMC."""
        status = device.status()
        if status.link_layer != INFINIBAND:
            return f"its link layer is {status.link_layer}"
        return "" if status.lmc else "its LMC is 0: the subnet manager gave it a single LID"

    def choices(self, device: OpenDevice) -> Sequence[int]:
        """All values of the bits that the LMC leaves free."""
        return range(1, 1 << device.status().lmc)

    def attributes(self, choice: int) -> PathAttributes:
        """The bits themselves."""
        if not 0 <= choice < _MOST:
            raise ValueError(f"{choice} is not a value of LID path bits, 0 to {_MOST - 1}")
        return PathAttributes(path_bits=choice)

    def after_connect(self, endpoint: OpenEndpoint, choice: int) -> None:
        """Nothing to do: the bits are in the address vector."""

    def move(self, endpoint: OpenEndpoint, choice: int) -> None:
        """Change the bits of the connected endpoint."""
        endpoint.readdress(self.attributes(choice))

    def source_port(self, endpoint: OpenEndpoint) -> int:  # noqa: ARG002
        """InfiniBand has none."""
        return 0
