"""The switches' routing protocol: withdraw what lies behind a dead link.

A switch re-hashes over its own remaining links at once (the kernel skips a next hop whose link is down). It cannot see
that a link farther on has died, and sends into a black hole until it learns of that, `withdraw_s` later. A link that
comes back is announced after the same time.
"""

import errno
import fcntl
import logging
import os
import selectors
import socket
import struct
import time
from collections.abc import Sequence

from c4bench.lab.guest import fabric, hashing, spraying
from c4bench.lab.topology import Link, Topology, next_hops

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
    """Watches every link at its upper end and rewrites routes after the topology's `withdraw_s`."""

    def __init__(self, topology: Topology, selector: selectors.BaseSelector) -> None:
        self._topology = topology
        self._links = {(link.upper.switch, link.upper.interface): link for link in topology.links}
        # Links by number: what the switches at their ends know at once, and what all others have been told.
        self._down: set[int] = set()
        self._dead: set[int] = set()
        self._due: list[tuple[float, Link, bool]] = []
        self._routes = next_hops(topology)
        self._sprayers, self._hashers = spraying.sprayers(topology), hashing.hashers(topology)
        for switch in dict.fromkeys(link.upper.switch for link in topology.links):
            listener = _link_listener(switch)
            selector.register(listener, selectors.EVENT_READ, _Handler(self, switch, listener))
        self._asking = {switch.name: _socket(switch.name, socket.AF_INET) for switch in topology.switches}

    def note(self, switch: str, interface: str, *, up: bool) -> None:
        """Note a link that changed state, and schedule when the other switches learn of it."""
        if (link := self._links.get((switch, interface))) is not None:
            (self._down.discard if up else self._down.add)(link.number)
            self._due.append((time.monotonic() + self._topology.withdraw_s, link, up))

    def due_in_s(self) -> float | None:
        """Seconds until the next route change, None when nothing is pending."""
        return max(0.0, self._due[0][0] - time.monotonic()) if self._due else None

    def apply_due(self) -> None:
        """Make the route changes whose time has come."""
        changed = []
        while self._due and self._due[0][0] <= time.monotonic():
            _, link, up = self._due.pop(0)
            before = link.number in self._dead
            (self._dead.discard if up else self._dead.add)(link.number)
            if before == up:
                changed.append(link)
                ends = link.lower.switch, link.upper.switch
                _logger.info("link of %s and %s %s", *ends, "restored" if up else "withdrawn")
        if changed:
            self._rewrite(changed)

    def _rewrite(self, changed: Sequence[Link]) -> None:
        """Write new routes, and those of the switches at the ends, where the kernel has dropped some itself."""
        # The kernel refuses a next hop over a port that is switched off, which the far end may not have noticed yet.
        unusable = {
            (link.number, end.switch)
            for link in self._topology.links
            for end in link.ends
            if link.number in self._down or not _is_up(self._asking[end.switch], end.interface)
        }
        routes = next_hops(self._topology, self._dead, unusable)
        at_ends = {end.switch for link in changed for end in link.ends}
        for switch, hops in routes.items():
            if switch in at_ends or hops != self._routes[switch]:
                by_bucket = {"sprayed": switch in self._sprayers, "hashed": switch in self._hashers}
                fabric.batch("ip", switch, fabric.route_commands(hops, **by_bucket))
        self._routes = routes


class _Handler:
    """Reads one switch's link messages when the selector reports some."""

    def __init__(self, routing: Routing, switch: str, listener: socket.socket) -> None:
        self._routing, self._switch, self._listener = routing, switch, listener

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
                self._routing.note(self._switch, interface, up=up)


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
