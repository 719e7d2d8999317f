"""A bonded mlx5 NIC whose firmware assigns QPs to ports: the UDP source port and the LAG port together."""

from collections.abc import Sequence
from pathlib import Path

from c4bench.verbs.bond import leaving_port, pci_function, read_bond
from c4bench.verbs.counters import SYSFS
from c4bench.verbs.mlx5 import LagPort, set_lag_port
from c4bench.verbs.path import PathAttributes
from c4bench.verbs.path_control import OpenDevice, OpenEndpoint, PathControl
from c4bench.verbs.sysfs import netdev_of


class SourcePortAndLagPort:
    """A UDP source port by `source_ports`, and with it the LAG port by which Linux's bond sends from that port.

    Probes leave by the port that the bond chooses. In queue affinity mode a QP leaves by its own, whatever its source
    port. With both, data takes the path that probes have found. LAG port n is PCI function n - 1 of the NIC. This was
    not tried on hardware.
    """

    chooses = "UDP source port"

    def __init__(self, source_ports: PathControl, sysfs: Path = SYSFS) -> None:
        self._source_ports, self._sysfs = source_ports, sysfs

    def obstacle(self, device: OpenDevice) -> str:
        """See PathControl. The bond is read, then firmware is tried."""
        bond = read_bond(self._netdev(device), self._sysfs)
        if bond.obstacle:
            return bond.obstacle
        if other := next((port for port in bond.ports if pci_function(port, self._sysfs) is None), ""):
            return f"its port {other} is no PCI function"
        return LagPort().obstacle(device) or self._source_ports.obstacle(device)

    def choices(self, device: OpenDevice) -> Sequence[int]:
        """The UDP source ports."""
        return self._source_ports.choices(device)

    def attributes(self, choice: int) -> PathAttributes:
        """Those of the source port."""
        return self._source_ports.attributes(choice)

    def after_connect(self, endpoint: OpenEndpoint, choice: int) -> None:
        """Set both; for ECMP leave the driver's source port, and the LAG port to firmware."""
        self._source_ports.after_connect(endpoint, choice)
        self._set_lag_port(endpoint, choice)

    def move(self, endpoint: OpenEndpoint, choice: int) -> None:
        """Set both; for ECMP the LAG port stays."""
        self._source_ports.move(endpoint, choice)
        self._set_lag_port(endpoint, choice)

    def source_port(self, endpoint: OpenEndpoint) -> int:
        """The UDP source port."""
        return self._source_ports.source_port(endpoint)

    def _set_lag_port(self, endpoint: OpenEndpoint, choice: int) -> None:
        """As the bond is now: when one of its ports fails, firmware moves QPs, and the bond moves flows, by itself."""
        bond = read_bond(self._netdev(endpoint.device), self._sysfs)
        if not choice or not bond.ports or not endpoint.remote:
            return
        own = endpoint.device.resolve_gid().address
        function = pci_function(leaving_port(bond.ports, own, endpoint.remote.gid, choice), self._sysfs)
        if function is not None:
            set_lag_port(endpoint, function + 1)

    def _netdev(self, device: OpenDevice) -> str:
        return netdev_of(device.name, device.port_number, self._sysfs)
