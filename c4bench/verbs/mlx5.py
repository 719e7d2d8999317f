"""The path knobs of NVIDIA (mlx5) NICs, which act on a live queue pair through the provider's own verbs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from c4bench.verbs.addressing import ETHERNET
from c4bench.verbs.errors import VerbsError, verbs
from c4bench.verbs.path import ANY_WAY, SOURCE_PORTS, PathAttributes, label_for, port_of
from c4bench.verbs.scratch import to_itself

if TYPE_CHECKING:
    from collections.abc import Sequence

    from c4bench.verbs.device import Device
    from c4bench.verbs.endpoint import Endpoint

# As ibv_query_device has it: the OUI, not the PCI vendor.
_NVIDIA = 0x02C9


class LiveSourcePort:
    """`mlx5dv_modify_qp_udp_sport`: another UDP source port from the next packet on, without draining."""

    chooses = "UDP source port"

    def obstacle(self, device: Device) -> str:
        """Try it on a QP that is connected to itself: firmware may refuse what the driver offers."""
        return _refusal(device, lambda endpoint: self._set(endpoint, SOURCE_PORTS[1]))

    def choices(self, device: Device) -> Sequence[int]:  # noqa: ARG002
        """The dynamic ports."""
        return SOURCE_PORTS

    def way(self, choice: int) -> PathAttributes:
        """The label of the port as well, so that the first packet already carries it."""
        return PathAttributes(flow_label=label_for(choice))

    def settle(self, endpoint: Endpoint, choice: int) -> None:
        """Set the port; ECMP is what the driver has done by itself."""
        if choice:
            self._set(endpoint, choice)

    def move(self, endpoint: Endpoint, choice: int) -> None:
        """Set the port, for ECMP to the one the driver derives from the QP numbers."""
        way = self.way(choice)
        self._set(endpoint, choice or port_of(0, *endpoint.qps))
        endpoint.way = way

    def source_port(self, endpoint: Endpoint) -> int:
        """The one set, or the driver's."""
        return port_of(endpoint.way.flow_label, *endpoint.qps)

    @staticmethod
    def _set(endpoint: Endpoint, source_port: int) -> None:
        with verbs(endpoint.device.name, f"setting UDP source port {source_port}", endpoint.qp_num):
            _provider().Mlx5QP.modify_udp_sport(endpoint.raw, source_port)


class LagPort:
    """`mlx5dv_modify_qp_lag_port`: the port of a bonded NIC, numbered from 1, where the bond places by queue pair."""

    chooses = "LAG port"

    def obstacle(self, device: Device) -> str:
        """Ask where a QP that is connected to itself goes, and try to set just that."""
        return _refusal(device, lambda endpoint: self._set(endpoint, lag_port(endpoint)))

    def choices(self, device: Device) -> Sequence[int]:
        """The bond's ports. VerbsError where the device is not mlx5."""
        provider = _provider()
        with (
            verbs(device.name, "asking for its LAG ports"),
            provider.Mlx5Context(provider.Mlx5DVContextAttr(), name=device.name) as context,
        ):
            return range(1, context.query_mlx5_device().num_lag_ports + 1)

    def way(self, choice: int) -> PathAttributes:  # noqa: ARG002
        """The address vector does not tell."""
        return ANY_WAY

    def settle(self, endpoint: Endpoint, choice: int) -> None:
        """Set the port: firmware may have chosen again at each change of state."""
        if choice:
            self._set(endpoint, choice)

    def move(self, endpoint: Endpoint, choice: int) -> None:
        """Set the port; 0 leaves it as it is."""
        self.settle(endpoint, choice)

    def source_port(self, endpoint: Endpoint) -> int:
        """The driver's."""
        return port_of(0, *endpoint.qps)

    @staticmethod
    def _set(endpoint: Endpoint, port: int) -> None:
        with verbs(endpoint.device.name, f"setting LAG port {port}", endpoint.qp_num):
            _provider().Mlx5QP.modify_lag_port(endpoint.raw, port)


def lag_port(endpoint: Endpoint) -> int:
    """The port of the bond an endpoint's packets leave by now. VerbsError where there is no bond."""
    with verbs(endpoint.device.name, "asking for its LAG port", endpoint.qp_num):
        _, active = _provider().Mlx5QP.query_lag_port(endpoint.raw)
    return int(active)


def _refusal(device: Device, attempt: Any) -> str:  # noqa: ANN401  (a function of an endpoint)
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
