"""Path controls of NVIDIA (mlx5) NICs, which act on a connected QP through the provider's direct verbs.

A bonded NIC whose firmware assigns QPs to ports gets a LAG port for each source port: the one by which Linux's bond
sends from that port.
"""

import ipaddress
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from c4bench.verbs.addressing import DEFAULT_PATH, ETHERNET, SOURCE_PORTS, PathAttributes, port_of
from c4bench.verbs.counters import SYSFS
from c4bench.verbs.discovery import netdev_of, read
from c4bench.verbs.errors import VerbsError, verbs
from c4bench.verbs.path_control import OpenDevice, OpenEndpoint, PathControl, UdpSourcePort, to_itself
from c4bench.verbs.probe import ROCE_PORT

# The vendor id of ibv_query_device: the OUI, not the PCI vendor.
_NVIDIA = 0x02C9


class LiveSourcePort(UdpSourcePort):
    """`mlx5dv_modify_qp_udp_sport`: another UDP source port from the next packet on, without draining."""

    def obstacle(self, device: OpenDevice) -> str:
        """Try it on a QP that is connected to itself, since firmware may refuse what the driver offers."""
        return _refusal(device, lambda endpoint: self._set(endpoint, SOURCE_PORTS[1]))

    def after_connect(self, endpoint: OpenEndpoint, choice: int) -> None:
        """Set the port; for ECMP keep the driver's."""
        if choice:
            self._set(endpoint, choice)

    def move(self, endpoint: OpenEndpoint, choice: int) -> None:
        """Set the port; for ECMP to the one that the driver derives from the QP numbers."""
        path = self.attributes(choice)
        self._set(endpoint, choice or port_of(0, *endpoint.qps))
        endpoint.path = path

    @staticmethod
    def _set(endpoint: OpenEndpoint, source_port: int) -> None:
        with verbs(endpoint.device.name, f"setting UDP source port {source_port}", endpoint.qp_num):
            _provider().Mlx5QP.modify_udp_sport(endpoint.raw, source_port)


class LagPort:
    """`mlx5dv_modify_qp_lag_port`: the port of a bonded NIC, from 1, if the bond assigns ports by QP."""

    chooses = "LAG port"

    def obstacle(self, device: OpenDevice) -> str:
        """Query the port of a QP that is connected to itself, and try to set the same."""
        return _refusal(device, lambda endpoint: set_lag_port(endpoint, lag_port(endpoint)))

    def choices(self, device: OpenDevice) -> Sequence[int]:
        """The bond's ports. Raises VerbsError if the device is not mlx5."""
        provider = _provider()
        with (
            verbs(device.name, "asking for its LAG ports"),
            provider.Mlx5Context(provider.Mlx5DVContextAttr(), name=device.name) as context,
        ):
            return range(1, context.query_mlx5_device().num_lag_ports + 1)

    def attributes(self, choice: int) -> PathAttributes:  # noqa: ARG002
        """The default: the address vector has no LAG port."""
        return DEFAULT_PATH

    def after_connect(self, endpoint: OpenEndpoint, choice: int) -> None:
        """Set the port, since firmware may choose again at each change of state."""
        if choice:
            set_lag_port(endpoint, choice)

    def move(self, endpoint: OpenEndpoint, choice: int) -> None:
        """Set the port; 0 changes nothing."""
        self.after_connect(endpoint, choice)

    def source_port(self, endpoint: OpenEndpoint) -> int:
        """The driver's port."""
        return port_of(0, *endpoint.qps)


def set_lag_port(endpoint: OpenEndpoint, port: int) -> None:
    """Send an endpoint's packets by this port of the bond, counted from 1. Raises VerbsError if firmware refuses."""
    with verbs(endpoint.device.name, f"setting LAG port {port}", endpoint.qp_num):
        _provider().Mlx5QP.modify_lag_port(endpoint.raw, port)


def lag_port(endpoint: OpenEndpoint) -> int:
    """The bond's port that an endpoint's packets currently use. Raises VerbsError if there is no bond."""
    with verbs(endpoint.device.name, "asking for its LAG port", endpoint.qp_num):
        _, active = _provider().Mlx5QP.query_lag_port(endpoint.raw)
    return int(active)


def _refusal(device: OpenDevice, attempt: Any) -> str:  # noqa: ANN401  (a function of an endpoint)
    status = device.status()
    if status.link_layer != ETHERNET:
        return f"its link layer is {status.link_layer}"
    if device.vendor != _NVIDIA:
        return "it is no NIC of the mlx5 family"
    try:
        with to_itself(device) as endpoint:
            attempt(endpoint)
    except VerbsError as error:
        return error.status or str(error)
    return ""


def _provider() -> Any:  # noqa: ANN401  (a module without type information)
    try:
        from pyverbs.providers.mlx5 import mlx5dv  # noqa: PLC0415  (built only where rdma-core has the provider)
    except ImportError as error:
        raise VerbsError(f"pyverbs has no mlx5 provider: {error}", device="mlx5") from error
    return mlx5dv


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


# The modes in which the hash chooses among all ports that are up.
_HASHING = ("balance-xor", "802.3ad")
_POLICY = "layer3+4"
_PCI = re.compile(r"[0-9a-f]+:[0-9a-f]{2}:[0-9a-f]{2}\.([0-7])")


class Bond(msgspec.Struct, frozen=True):
    """A bond's interfaces that are up, in the kernel's order, and why its hash cannot be told; "" if it can."""

    ports: tuple[str, ...]
    obstacle: str


def read_bond(netdev: str, sysfs: Path = SYSFS) -> Bond:
    """The bond of this name, or an obstacle if it is none (Documentation/networking/bonding of Linux)."""
    folder = sysfs / "net" / netdev / "bonding"
    if not netdev or not folder.is_dir():
        return Bond((), "it is no bond")
    mode, policy = (read(folder / name).partition(" ")[0] for name in ("mode", "xmit_hash_policy"))
    ports = read(folder / "slaves").split()
    up = tuple(port for port in ports if read(sysfs / "net" / port / "bonding_slave" / "mii_status") == "up")
    if mode not in _HASHING or policy != _POLICY:
        return Bond(up, f"bond {netdev} has mode {mode} and policy {policy}; set balance-xor or 802.3ad with {_POLICY}")
    return Bond(up, "" if up else f"no port of bond {netdev} is up")


def leaving_port(ports: Sequence[str], source: str, destination: str, source_port: int) -> str:
    """The port by which packets between these addresses leave: `bond_xmit_hash` of Linux's drivers/net/bonding.

    Addresses are IPv4, or IPv6 as GIDs have it, where IPv4 is mapped. ValueError for any other text.
    """
    mixed = source_port.to_bytes(2, "big") + ROCE_PORT.to_bytes(2, "big")
    words = [mixed, *_words(source), *_words(destination)]
    value = 0
    for word in words:
        value ^= int.from_bytes(word, "little")
    value ^= value >> 16
    value ^= value >> 8
    return ports[(value >> 1) % len(ports)]


def _words(address: str) -> list[bytes]:
    parsed = ipaddress.ip_address(address)
    if isinstance(parsed, ipaddress.IPv6Address):
        parsed = parsed.ipv4_mapped or parsed
    return [parsed.packed[start : start + 4] for start in range(0, len(parsed.packed), 4)]


def pci_function(netdev: str, sysfs: Path = SYSFS) -> int | None:
    """The PCI function of an interface; None if it has none."""
    found = _PCI.fullmatch((sysfs / "net" / netdev / "device").resolve().name)
    return int(found[1]) if found else None
