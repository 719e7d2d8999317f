"""Echoes of the RDMA plane, which need no program at the far end: a connection request, and its rejection.

The connection manager (CM) behind every RDMA NIC's QP 1 rejects a request for a service that nobody offers (InfiniBand
Architecture Specification, volume 1, 12.6). The NIC sends the request itself, as it sends data, with the traffic class
of the data: it passes what data passes, and not what the kernel does to its own packets. Requests go through the
kernel's /dev/infiniband/rdma_cm (linux/include/uapi/rdma/rdma_user_cm.h). The CM repeats a request after seconds, so
that within less each probe is one packet. Its path is that of QP 1; nothing chooses it.
"""

import ctypes
import ipaddress
import os
import select
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from c4bench.errors import UnhealthyError

RDMA_CM = Path("/dev/infiniband/rdma_cm")
_CREATE, _DESTROY, _RESOLVE_ADDRESS, _RESOLVE_ROUTE, _CONNECT, _GET_EVENT, _SET_OPTION = 0, 1, 3, 4, 6, 12, 14
_ADDRESS_RESOLVED, _ROUTE_RESOLVED, _REJECTED = 0, 2, 8
_HEADER = struct.Struct("=IHH")
_EVENT, _EVENT_BYTES = struct.Struct("=QIII"), 336
_TCP_SPACE, _RELIABLE = 0x0106, 2
_OPTION_ID, _OPTION_TOS = 0, 0
_RESOLVE_MS = 1000
# The port of a service that nobody offers: the first of traceroute, as of our other probes.
_PORT = 33434
# rdma_ucm_conn_param: a QP number, no private data, one read each way, 7 retries, valid; then room for the id.
_PARAMETERS = struct.pack("=II256s8B", 1, 0, b"", 0, 0, 1, 1, 0, 7, 7, 1)


class CmEcho:
    """Probes from one NIC's address to another's; `sent_s` and `arrived_s` by number (host's clock).

    `arrived_s` is in order of arrival. Raises UnhealthyError where the connection manager cannot be used.
    """

    def __init__(self, source: str, peer: str, traffic_class: int, *, path: Path = RDMA_CM) -> None:
        self.sent_s: dict[int, float] = {}
        self.arrived_s: dict[int, float] = {}
        self._addresses = _socket_address(source, 0) + _socket_address(peer, _PORT)
        self._class = ctypes.c_uint8(traffic_class)
        self._answer = ctypes.create_string_buffer(_EVENT_BYTES)
        self._ids: dict[int, int] = {}
        try:
            self._manager = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise UnhealthyError(f"{path}: {error.strerror}; load the kernel module rdma_ucm") from None

    def __enter__(self) -> "CmEcho":
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def close(self) -> None:
        """Forget all probes. May be called once."""
        os.close(self._manager)

    def send(self, number: int) -> None:
        """Send a probe as soon as the kernel has resolved the peer's address; one that cannot be sent is lost."""
        self.sent_s[number] = time.time()
        with suppress(OSError):  # the link or the device is down
            # An id of 0 means to the kernel that nobody wants its events.
            self._command(_CREATE, struct.pack("=QQHB5x", number + 1, self._room, _TCP_SPACE, _RELIABLE), 4)
            self._ids[number] = identifier = struct.unpack_from("=I", self._answer.raw)[0]
            option = ctypes.addressof(self._class), identifier, _OPTION_ID, _OPTION_TOS, 1
            self._command(_SET_OPTION, struct.pack("=QIIII", *option))
            self._command(_RESOLVE_ADDRESS, self._addresses + struct.pack("=II", identifier, _RESOLVE_MS))
            self.receive(0.0)

    def receive(self, wait_s: float, enough: Callable[[], bool] = lambda: False) -> None:
        """Take what arrives within `wait_s`, or until there is `enough`."""
        until_s = time.monotonic() + wait_s
        while not enough() and self._has_event(until_s):
            with suppress(OSError):
                self._command(_GET_EVENT, struct.pack("=Q", self._room), _EVENT_BYTES)
                self._happened(*_EVENT.unpack_from(self._answer.raw))

    def _has_event(self, until_s: float) -> bool:
        """Wait for an event until then (monotonic); `select`, since `poll` counts whole milliseconds."""
        return bool(select.select([self._manager], [], [], max(0.0, until_s - time.monotonic()))[0])

    def _happened(self, tag: int, identifier: int, event: int, _: int) -> None:
        number = tag - 1
        if event == _ADDRESS_RESOLVED:
            self._command(_RESOLVE_ROUTE, struct.pack("=II", identifier, _RESOLVE_MS))
        elif event == _ROUTE_RESOLVED:
            self.sent_s[number] = time.time()
            self._command(_CONNECT, _PARAMETERS + struct.pack("=IIII", identifier, 0, 0, 0))
        else:
            if event == _REJECTED:
                self.arrived_s[number] = time.time()
            self._command(_DESTROY, struct.pack("=QII", self._room, identifier, 0), 4)

    @property
    def _room(self) -> int:
        """Where the kernel writes its answers."""
        return ctypes.addressof(self._answer)

    def _command(self, command: int, body: bytes, answer_bytes: int = 0) -> None:
        os.write(self._manager, _HEADER.pack(command, len(body), answer_bytes) + body)


def _socket_address(address: str, port: int) -> bytes:
    """A `struct sockaddr_in6`, which has room for one of IPv4. Raises UnhealthyError for what is no address."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        raise UnhealthyError(f"{address!r} is no IP address; correct the NIC's address in the inventory") from None
    network_port = port.to_bytes(2, "big")
    if parsed.version == 4:
        return struct.pack("=H2s4s20x", socket.AF_INET, network_port, parsed.packed)
    return struct.pack("=H2s4x16s4x", socket.AF_INET6, network_port, parsed.packed)
