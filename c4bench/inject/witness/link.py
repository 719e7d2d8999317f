"""Witnesses of links: the interface's carrier, the RDMA port where there is one, and whether the peer answers again.

A link is up before packets pass: a switch may delay forwarding on a port, and after a failed ARP request the next one
comes a second later. A user of the link would take that delay for another fault.
"""

import contextlib
import ctypes
import errno
import fcntl
import socket
import struct
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from c4bench import namespaces
from c4bench.errors import UnhealthyError
from c4bench.inject import interfaces, targets
from c4bench.inject.interfaces import netns_of
from c4bench.inject.registry import witness
from c4bench.inject.witness import figure
from c4bench.inject.witness.base import Aftermath, Evidence, Polled, Values, Witness, wait_until
from c4bench.inject.witness.echo import Prober
from c4bench.model.fault import FaultRequest, Interface

_SIOCGIFFLAGS = 0x8913
_IFF_RUNNING = 0x40
_REQUEST = struct.Struct("16sH22x")
_SIOCETHTOOL = 0x8946
_ETHTOOL_GLINK = 0x0000000A
_ETHTOOL_VALUE = struct.Struct("II")
_REQUEST_POINTER = struct.Struct("16sP16x")
_PORT_ACTIVE = 4


def interface_state(request: FaultRequest) -> Polled:
    """`running` is 1 when the interface is up with a carrier; `port` is the RDMA port's state (1 down, 4 active).

    Seen when interface and port, up before, are down; recovered when both are up, or were not before.
    """
    return Polled(
        request.witness_s,
        lambda: state(request.interface),
        lambda _, now: _down(now),
        lambda before, now: _up(now) or not _up(before),
        _up,
    )


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


def ports_state(request: FaultRequest) -> Polled:
    """`running`: how many of the ports that were up are still up. Seen when none is, recovered when all are."""
    ports = [port for port in targets.switch_ports(request) if running([port])]
    return Polled(
        request.witness_s,
        lambda: {"running": float(running(ports))},
        lambda _, now: not now["running"],
        lambda _, now: now["running"] == len(ports),
        lambda _: bool(ports),
    )


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


PeerProbe = Callable[[], bool]
# A real link trains for seconds, and with spanning tree a port forwards only after 30 s (IEEE 802.1D).
_RETURN_TIMEOUT_S = 40.0


class PeerReachable:
    """Adds to another witness `answers`: the number of cables over which the peer answers an echo request.

    The target has recovered when as many answer as before the fault. A cable without a peer, or that cannot be probed,
    is left to the other witness. Waits at most `back_s`.
    """

    def __init__(self, witness: Witness, cables: Sequence[PeerProbe], back_s: float = _RETURN_TIMEOUT_S) -> None:
        self._witness, self._cables, self._back_s = witness, cables, back_s
        self._healthy: list[PeerProbe] = []

    def before(self) -> Values:
        """The other witness's values, and how many peers answer."""
        self._healthy = [asks for asks in self._cables if asks()]
        return self._witness.before() | {"answers": float(len(self._healthy))}

    def during(self, onset_s: float) -> Evidence:
        """The other witness's evidence."""
        return self._witness.during(onset_s)

    def after(self) -> Aftermath:
        """The other witness's values, once all peers have answered."""
        wait_until(self._all_answer, self._back_s)
        values, recovered = self._witness.after()
        answers = sum(asks() for asks in self._healthy)
        return Aftermath(values | {"answers": float(answers)}, recovered and answers == len(self._healthy))

    def _all_answer(self) -> bool:
        return all(asks() for asks in self._healthy)


@witness("link_state")
def link_state(request: FaultRequest) -> PeerReachable:
    """Witness of a link's state."""
    return PeerReachable(interface_state(request), _peer_probes([request.interface]))


@witness("link_flaps")
def link_flaps(request: FaultRequest) -> PeerReachable:
    """Witness of a flapping link."""
    return PeerReachable(LinkFlaps(request), _peer_probes([request.interface]))


@witness("switch_state")
def switch_state(request: FaultRequest) -> PeerReachable:
    """Witness of a switch's ports."""
    return PeerReachable(ports_state(request), _peer_probes(targets.switch_ports(request)))


@witness("gid_table")
def gid_table(request: FaultRequest) -> PeerReachable:
    """Witness of a NIC's GIDs."""
    return PeerReachable(figure.gid_table(request), _peer_probes([request.interface]))


def _peer_probes(ends: Iterable[Interface]) -> list[PeerProbe]:
    probes = []
    for end in ends:
        with contextlib.suppress(UnhealthyError):  # no address, or no known peer
            probes.append(_peer_probe(Prober(interfaces.examine(end))))
    return probes


def _peer_probe(prober: Prober) -> PeerProbe:
    def probe() -> bool:
        try:
            return not prober.train(1).lost
        except OSError:  # the address went with the link
            return False

    return probe
