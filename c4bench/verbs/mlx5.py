"""Path controls of NVIDIA (mlx5) NICs, which act on a connected QP through the provider's direct verbs."""

from collections.abc import Sequence
from typing import Any

from c4bench.verbs.addressing import ETHERNET
from c4bench.verbs.errors import VerbsError, verbs
from c4bench.verbs.path import DEFAULT_PATH, SOURCE_PORTS, PathAttributes, label_for, port_of
from c4bench.verbs.path_control import OpenDevice, OpenEndpoint
from c4bench.verbs.scratch import to_itself

# The vendor id of ibv_query_device: the OUI, not the PCI vendor.
_NVIDIA = 0x02C9


class LiveSourcePort:
    """`mlx5dv_modify_qp_udp_sport`: another UDP source port from the next packet on, without draining."""

    chooses = "UDP source port"

    def obstacle(self, device: OpenDevice) -> str:
        """Try it on a QP that is connected to itself, since firmware may refuse what the driver offers."""
        return _refusal(device, lambda endpoint: self._set(endpoint, SOURCE_PORTS[1]))

    def choices(self, device: OpenDevice) -> Sequence[int]:  # noqa: ARG002
        """The dynamic ports."""
        return SOURCE_PORTS

    def attributes(self, choice: int) -> PathAttributes:
        """The label of the port, so that the first packet carries it already."""
        return PathAttributes(flow_label=label_for(choice))

    def after_connect(self, endpoint: OpenEndpoint, choice: int) -> None:
        """Set the port; for ECMP keep the driver's."""
        if choice:
            self._set(endpoint, choice)

    def move(self, endpoint: OpenEndpoint, choice: int) -> None:
        """Set the port; for ECMP to the one that the driver derives from the QP numbers."""
        path = self.attributes(choice)
        self._set(endpoint, choice or port_of(0, *endpoint.qps))
        endpoint.path = path

    def source_port(self, endpoint: OpenEndpoint) -> int:
        """The port that was set, or the driver's."""
        return port_of(endpoint.path.flow_label, *endpoint.qps)

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
