"""Witnesses of links: the interface's carrier, and the RDMA port where there is one."""

import ctypes
import errno
import fcntl
import socket
import struct
import time
from collections.abc import Iterable
from pathlib import Path

from c4bench import namespaces
from c4bench.inject import switches
from c4bench.inject.interfaces import netns_of
from c4bench.inject.witness.base import Aftermath, Evidence, Values, wait_until
from c4bench.model.fault import FaultRequest, Interface

_SIOCGIFFLAGS = 0x8913
_IFF_RUNNING = 0x40
_REQUEST = struct.Struct("16sH22x")
_SIOCETHTOOL = 0x8946
_ETHTOOL_GLINK = 0x0000000A
_ETHTOOL_VALUE = struct.Struct("II")
_REQUEST_POINTER = struct.Struct("16sP16x")
_PORT_ACTIVE = 4


class LinkState:
    """`running` is 1 when the interface is up with a carrier; `port` is the RDMA port's state (1 down, 4 active)."""

    def __init__(self, request: FaultRequest) -> None:
        self._interface, self._window_s = request.interface, request.witness_s
        self._was_up = False

    def before(self) -> Values:
        """Read the state before the fault."""
        values = state(self._interface)
        self._was_up = _up(values)
        return values

    def during(self, onset_s: float) -> Evidence:  # noqa: ARG002  (a state does not depend on the onset)
        """Seen when interface and port, up before, are down."""
        observed_s = wait_until(lambda: _down(state(self._interface)), self._window_s)
        return Evidence(state(self._interface), observed_s if self._was_up else None)

    def after(self) -> Aftermath:
        """Recovered when interface and port are up."""
        wait_until(lambda: _up(state(self._interface)), self._window_s)
        values = state(self._interface)
        return Aftermath(values, _up(values) or not self._was_up)


class LinkFlaps:
    """`down` and `up`: whether the link was seen to go down and up. Seen when it did both."""

    def __init__(self, request: FaultRequest) -> None:
        self._interface = request.interface
        self._down_s = request.number("period_s") * request.number("duty")
        self._window_s = request.witness_s + self._down_s
        self._was_up = False

    def before(self) -> Values:
        """Read the state before the fault."""
        self._was_up = running([self._interface]) > 0
        return {"running": float(self._was_up)}

    def during(self, onset_s: float) -> Evidence:  # noqa: ARG002
        """Observed when it was first down."""
        down_s = wait_until(lambda: not running([self._interface]), self._window_s)
        up_s = wait_until(lambda: running([self._interface]) > 0, self._window_s)
        values = {"down": float(down_s is not None), "up": float(up_s is not None)}
        return Evidence(values, down_s if self._was_up and up_s else None)

    def after(self) -> Aftermath:
        """Recovered when up, and still up a period's down time later."""
        wait_until(lambda: running([self._interface]) > 0, self._window_s)
        time.sleep(self._down_s)
        up = running([self._interface]) > 0
        return Aftermath({"running": float(up)}, up)


class SwitchState:
    """`running`: how many of the ports that were up are still up."""

    def __init__(self, request: FaultRequest) -> None:
        self._ports = [port for port in switches.ports(request) if running([port])]
        self._window_s = request.witness_s

    def before(self) -> Values:
        """Count the ports that are up."""
        return {"running": float(len(self._ports))}

    def during(self, onset_s: float) -> Evidence:  # noqa: ARG002
        """Seen when none is up."""
        observed_s = wait_until(lambda: not running(self._ports), self._window_s)
        return Evidence({"running": float(running(self._ports))}, observed_s if self._ports else None)

    def after(self) -> Aftermath:
        """Recovered when all are up."""
        wait_until(lambda: running(self._ports) == len(self._ports), self._window_s)
        return Aftermath({"running": float(running(self._ports))}, running(self._ports) == len(self._ports))


def state(interface: Interface) -> Values:
    """`running`, and `port` for an RDMA device."""
    values = {"running": float(carrier(interface))}
    if interface.device:
        port = Path(f"/sys/class/infiniband/{interface.device}/ports/1/state")
        values["port"] = float(port.read_text().partition(":")[0])
    return values


def carrier(interface: Interface) -> bool:
    """Whether the interface is up with a carrier now.

    The kernel updates IFF_RUNNING up to a second late, so that flag is read only where the driver does not
    support ethtool's link query.
    """
    asked = ctypes.create_string_buffer(_ETHTOOL_VALUE.pack(_ETHTOOL_GLINK, 0), _ETHTOOL_VALUE.size)
    request = _REQUEST_POINTER.pack(interface.netdev.encode(), ctypes.addressof(asked))
    with namespaces.network(netns_of(interface)), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            fcntl.ioctl(sock, _SIOCETHTOOL, request)
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise
            answer = fcntl.ioctl(sock, _SIOCGIFFLAGS, _REQUEST.pack(interface.netdev.encode(), 0))
            return bool(_REQUEST.unpack(answer)[1] & _IFF_RUNNING)
    return bool(_ETHTOOL_VALUE.unpack(asked.raw)[1])


def running(interfaces: Iterable[Interface]) -> int:
    """How many of them are up with a carrier."""
    return sum(bool(state(interface)["running"]) for interface in interfaces)


def _up(values: Values) -> bool:
    return bool(values["running"]) and values.get("port", _PORT_ACTIVE) == _PORT_ACTIVE


def _down(values: Values) -> bool:
    return not values["running"] and values.get("port", 0.0) != _PORT_ACTIVE
