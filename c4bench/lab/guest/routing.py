"""The switches' routing protocol, as far as a leaf-spine fabric needs one: withdraw routes over dead leaf-spine links.

A leaf hashes over its own remaining links at once, as the kernel skips a next hop whose link is down. It cannot see a
dead link of another leaf, and sends into a black hole until it learns of that, `withdraw_s` later. A link that comes
back is announced after the same time.
"""

import errno
import fcntl
import logging
import os
import selectors
import socket
import struct
import time

from c4bench.lab.guest import fabric
from c4bench.lab.topology import Topology, uplinks

_logger = logging.getLogger(__name__)

_RTMGRP_LINK = 1
_RTM_NEWLINK = 16
_SIOCGIFFLAGS = 0x8913
_IFF_UP = 0x1
_IFF_RUNNING = 0x40
_IFLA_IFNAME = 3
_HEADER = struct.Struct("=IHHII")
_LINK = struct.Struct("=BBHiII")
_ATTRIBUTE = struct.Struct("=HH")
_IFREQ = struct.Struct("=16sH22x")


class Routing:
    """Watches every spine's links and rewrites the leaves' routes after the topology's `withdraw_s`."""

    def __init__(self, topology: Topology, selector: selectors.BaseSelector) -> None:
        self._topology = topology
        # Links as (leaf, spine): `_down` as the leaf's own kernel knows at once, `_dead` as other leaves know later.
        self._down: set[tuple[int, int]] = set()
        self._dead: set[tuple[int, int]] = set()
        self._due: list[tuple[float, tuple[int, int], bool]] = []
        for spine in range(topology.spine.count):
            listener = _link_listener(fabric.spine_name(spine))
            selector.register(listener, selectors.EVENT_READ, _Handler(self, spine, listener))
        self._asking = [_socket(fabric.leaf_name(leaf), socket.AF_INET) for leaf in range(topology.leaf.count)]

    def note(self, spine: int, interface: str, *, up: bool) -> None:
        """Note a spine's link that changed state, and schedule when the leaves learn of it."""
        if interface.startswith("down"):
            link = (int(interface.removeprefix("down")), spine)
            (self._down.discard if up else self._down.add)(link)
            self._due.append((time.monotonic() + self._topology.withdraw_s, link, up))

    def due_in_s(self) -> float | None:
        """Seconds until the next route change, None when nothing is pending."""
        return max(0.0, self._due[0][0] - time.monotonic()) if self._due else None

    def apply_due(self) -> None:
        """Make the route changes whose time has come."""
        changed = False
        while self._due and self._due[0][0] <= time.monotonic():
            _, link, up = self._due.pop(0)
            before = link in self._dead
            (self._dead.discard if up else self._dead.add)(link)
            changed |= before == up
            if before == up:
                leaf, spine = link
                _logger.info("route to leaf %d by spine %d %s", leaf, spine, "restored" if up else "withdrawn")
        if changed:
            self._rewrite()

    def _rewrite(self) -> None:
        leaves = range(self._topology.leaf.count)
        for leaf in leaves:
            # The kernel refuses a next hop over a port that is switched off, which the spine may not have noticed yet.
            ours = [link for link in uplinks(self._topology) if link.leaf == leaf]
            own = {link.spine for link in ours if _is_up(self._asking[leaf], link.leaf_interface)}
            usable = {other: own - _of(leaf, self._down) - _of(other, self._dead) for other in leaves}
            fabric.batch("ip", fabric.leaf_name(leaf), fabric.leaf_routes(self._topology, leaf, usable))


def _of(leaf: int, links: set[tuple[int, int]]) -> set[int]:
    """The spines at the far ends of a leaf's links."""
    return {spine for own, spine in links if own == leaf}


class _Handler:
    """Reads one spine's link messages when the selector reports some."""

    def __init__(self, routing: Routing, spine: int, listener: socket.socket) -> None:
        self._routing, self._spine, self._listener = routing, spine, listener

    def __call__(self) -> None:
        while True:
            try:
                data = self._listener.recv(65536)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno == errno.ENOBUFS:
                    continue
                raise
            for interface, up in link_states(data):
                self._routing.note(self._spine, interface, up=up)


def _link_listener(namespace: str) -> socket.socket:
    listener = _socket(namespace, socket.AF_NETLINK, socket.NETLINK_ROUTE)
    listener.bind((0, _RTMGRP_LINK))
    listener.setblocking(False)
    return listener


def _socket(namespace: str, family: int, protocol: int = 0) -> socket.socket:
    with fabric.inside(namespace):
        opened = socket.socket(family, socket.SOCK_RAW if protocol else socket.SOCK_DGRAM, protocol)
    os.set_inheritable(opened.fileno(), False)
    return opened


def _is_up(asking: socket.socket, interface: str) -> bool:
    """Whether an interface of that socket's namespace is switched on (netdevice(7))."""
    answer = fcntl.ioctl(asking, _SIOCGIFFLAGS, _IFREQ.pack(interface.encode(), 0))
    return bool(_IFREQ.unpack(answer)[1] & _IFF_UP)


def link_states(data: bytes) -> list[tuple[str, bool]]:
    """(interface, running) for each link message in a netlink datagram (rtnetlink(7))."""
    states = []
    offset = 0
    while offset + _HEADER.size <= len(data):
        length, kind, *_ = _HEADER.unpack_from(data, offset)
        if length < _HEADER.size or offset + length > len(data):
            break
        if kind == _RTM_NEWLINK and length >= _HEADER.size + _LINK.size:
            message = data[offset + _HEADER.size : offset + length]
            flags = _LINK.unpack_from(message)[4]
            states.append((_interface_name(message[_LINK.size :]), bool(flags & _IFF_RUNNING)))
        offset += (length + 3) & ~3
    return states


def _interface_name(attributes: bytes) -> str:
    offset = 0
    while offset + _ATTRIBUTE.size <= len(attributes):
        length, kind = _ATTRIBUTE.unpack_from(attributes, offset)
        if length < _ATTRIBUTE.size:
            break
        if kind == _IFLA_IFNAME:
            return attributes[offset + _ATTRIBUTE.size : offset + length].rstrip(b"\0").decode()
        offset += (length + 3) & ~3
    return ""
