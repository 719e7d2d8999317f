"""The witness of a link that is down: the interface's flags, and the RDMA port where there is one."""

import fcntl
import socket
import struct
from pathlib import Path

from c4bench import namespaces
from c4bench.inject.witness.base import Aftermath, Evidence, Values, wait_until
from c4bench.model.fault import FaultRequest

_SIOCGIFFLAGS = 0x8913
_IFF_RUNNING = 0x40
_REQUEST = struct.Struct("16sH22x")
_PORT_ACTIVE = 4


class LinkState:
    """`running` is 1 when the interface is up with a carrier; `port` is the RDMA port's state (1 down, 4 active)."""

    def __init__(self, request: FaultRequest) -> None:
        nic = request.the_nic
        self._netdev, self._netns, self._look_s = nic.netdev, nic.netns, request.witness_s
        self._port = Path(f"/sys/class/infiniband/{nic.device}/ports/1/state") if nic.device else None
        self._was_up = False

    def before(self) -> Values:
        """The state in health."""
        found = self._state()
        self._was_up = _up(found)
        return found

    def during(self, onset_s: float) -> Evidence:  # noqa: ARG002  (a state has no memory of its onset)
        """Seen when what was up before is down altogether."""
        observed_s = wait_until(lambda: _down(self._state()), self._look_s)
        return Evidence(self._state(), observed_s if self._was_up else None)

    def after(self) -> Aftermath:
        """Recovered when up altogether."""
        wait_until(lambda: _up(self._state()), self._look_s)
        found = self._state()
        return Aftermath(found, _up(found) or not self._was_up)

    def _state(self) -> Values:
        with namespaces.network(self._netns), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
            answer = fcntl.ioctl(line, _SIOCGIFFLAGS, _REQUEST.pack(self._netdev.encode(), 0))
        found = {"running": float(bool(_REQUEST.unpack(answer)[1] & _IFF_RUNNING))}
        if self._port:
            found["port"] = float(self._port.read_text().partition(":")[0])
        return found


def _up(state: Values) -> bool:
    return bool(state["running"]) and state.get("port", _PORT_ACTIVE) == _PORT_ACTIVE


def _down(state: Values) -> bool:
    return not state["running"] and state.get("port", 0.0) != _PORT_ACTIVE
