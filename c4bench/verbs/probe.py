"""Trace the path of a UDP source port: TTL-limited probes with the data flows' 5-tuple, from an ordinary socket."""

import ipaddress
import itertools
import math
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from c4bench.errors import C4Error
from c4bench.model.fabric import Nic

ROCE_PORT = 4791
IN_FLIGHT = 64
ATTEMPTS = 4
_PAYLOAD = b"c4bench probe"
_AGAIN_S = 1e-4
_GATHERED_S = 1e-3
_TIME_EXCEEDED = {4: 11, 6: 3}
# ee_errno, ee_origin, ee_type, ee_code (linux/errqueue.h); the offender's sockaddr follows at byte 16.
_EXTENDED_ERROR = struct.Struct("=IBBB")
_RECVERR4, _RECVERR6 = 11, 25


class _Family(NamedTuple):
    """What differs by IP version: socket family, option level, TTL and error options, the offender's address."""

    family: int
    level: int
    ttl: int
    receive_errors: int
    offender: slice


_FAMILIES = {
    4: _Family(socket.AF_INET, socket.IPPROTO_IP, socket.IP_TTL, _RECVERR4, slice(20, 24)),
    6: _Family(socket.AF_INET6, socket.IPPROTO_IPV6, socket.IPV6_UNICAST_HOPS, _RECVERR6, slice(24, 40)),
}


class Answer(NamedTuple):
    """An ICMP error: its sender, and whether it is Time Exceeded."""

    hop: str
    expired: bool


@dataclass(slots=True)
class _Trace:
    """One source port's path so far; a deadline of 0 means that the trace has ended."""

    port: int
    socket: socket.socket
    deadline: float = 0.0
    attempts: int = 0
    hops: list[str] = field(default_factory=list)

    def end(self, hop: str) -> None:
        """The path ends at `hop`."""
        self.hops.append(hop)
        self.deadline = 0.0


def probe_paths(
    nic: Nic,
    destination: str,
    source_ports: Sequence[int],
    max_hops: int,
    timeout_s: float = 0.5,
    *,
    rate_pps: float = math.inf,
    silences: int = 1,
) -> dict[int, tuple[str, ...]]:
    """The addresses of the hops, in order, for each source port from `nic` to the address `destination`.

    A trace ends at `max_hops`, at the destination, at a hop that refuses to forward, or after `silences` hops in a row
    that answer none of four probes within `timeout_s`; such a hop is "". A software NIC drops probes that reach it, so
    give the number of switches as `max_hops`. At most 64 probes are in flight, and at most `rate_pps` are sent per
    second. Raises C4Error if the sockets cannot be opened.
    """
    prober = _Prober(nic, destination, _Limits(max_hops, timeout_s / ATTEMPTS, silences), RateLimiter(rate_pps))
    try:
        paths = prober.run(deque(dict.fromkeys(source_ports)))
    finally:
        prober.close()
    return {port: paths[port] for port in source_ports}


def send_bursts(nic: Nic, destination: str, bursts: Sequence[tuple[int, int, int]], rate_pps: float) -> None:
    """Send packets with the 5-tuple of data flows for switches to count: `count` for each (source port, hops, count).

    They expire after `hops` hops. Raises C4Error if the sockets cannot be opened.
    """
    family, pacer = _family(destination), RateLimiter(rate_pps)
    for port, hops, count in bursts:
        trace = _open(nic, port)
        try:
            trace.socket.setsockopt(family.level, family.ttl, hops)
            # Answers are not read here, and a pending one would make the next send fail.
            trace.socket.setsockopt(family.level, family.receive_errors, 0)
            for _ in range(count):
                pacer.wait()
                while not _sent(trace.socket, destination):
                    time.sleep(_AGAIN_S)
        finally:
            trace.socket.close()


def _sent(sock: socket.socket, destination: str) -> bool:
    try:
        sock.sendto(_PAYLOAD, (destination, ROCE_PORT))
    except BlockingIOError:
        return False
    except OSError as error:
        raise C4Error(f"cannot send to {destination}: {error}") from error
    return True


class RateLimiter:
    """Limits a rate to `rate_pps` per second."""

    def __init__(self, rate_pps: float) -> None:
        self._gap_s = 1 / rate_pps
        self._due_s = 0.0

    def wait(self) -> None:
        """Wait until the next packet may be sent."""
        if not self._gap_s:
            return
        now = time.monotonic()
        # Sleep only for longer waits: sleeping between any two packets would cost more than sending them.
        if self._due_s - now > _GATHERED_S:
            time.sleep(self._due_s - now)
        self._due_s = max(self._due_s, now) + self._gap_s


class _Limits(NamedTuple):
    """When a trace ends: after this many hops or silent hops in a row; each attempt lasts `attempt_s`."""

    max_hops: int
    attempt_s: float
    silences: int


class _Prober:
    """The traces in flight from one NIC to one destination."""

    def __init__(self, nic: Nic, destination: str, limits: _Limits, pacer: RateLimiter) -> None:
        self._nic = nic
        self._destination = str(ipaddress.ip_address(destination))
        self._limits = limits
        self._attempt_s = limits.attempt_s
        self._pacer = pacer
        self._running: dict[int, _Trace] = {}
        self._poller = select.poll()

    def run(self, waiting: deque[int]) -> dict[int, tuple[str, ...]]:
        """Trace every port of `waiting`."""
        paths: dict[int, tuple[str, ...]] = {}
        while waiting or self._running:
            self._start([waiting.popleft() for _ in range(min(len(waiting), IN_FLIGHT - len(self._running)))])
            if all(trace.deadline for trace in self._running.values()):
                self._collect()
            paths.update((trace.port, tuple(trace.hops)) for trace in self._pop_ended())
        return paths

    def _start(self, ports: list[int]) -> None:
        if not ports:
            return
        deadline = time.monotonic() + self._attempt_s
        for port in ports:
            trace = _open(self._nic, port)
            self._running[trace.socket.fileno()] = trace
            self._poller.register(trace.socket.fileno(), select.POLLERR)
            self._send(trace, deadline)

    def _send(self, trace: _Trace, deadline: float) -> None:
        family = _family(self._destination)
        trace.deadline = deadline
        trace.attempts += 1
        self._pacer.wait()
        try:
            trace.socket.setsockopt(family.level, family.ttl, len(trace.hops) + 1)
            trace.socket.sendto(_PAYLOAD, (self._destination, ROCE_PORT))
        except OSError:
            # No route or no carrier counts as a hop that does not answer.
            trace.end("")

    def _collect(self) -> None:
        wait_s = min(trace.deadline for trace in self._running.values()) - time.monotonic()
        ready = self._poller.poll(max(0.0, wait_s) * 1000)
        now = time.monotonic()
        for fd, _ in ready:
            answer = _read(self._running[fd].socket, self._destination)
            if answer is not None:
                self._advance(self._running[fd], answer, now + self._attempt_s)
        for trace in self._running.values():
            if trace.deadline and trace.deadline <= now:
                self._retry(trace, now + self._attempt_s)

    def _retry(self, trace: _Trace, deadline: float) -> None:
        if trace.attempts < ATTEMPTS:
            self._send(trace, deadline)
            return
        silent = 1 + sum(1 for _ in itertools.takewhile(lambda hop: not hop, reversed(trace.hops)))
        if silent >= self._limits.silences or len(trace.hops) + 1 >= self._limits.max_hops:
            trace.end("")
        else:
            self._next(trace, "", deadline)

    def _next(self, trace: _Trace, hop: str, deadline: float) -> None:
        trace.hops.append(hop)
        trace.attempts = 0
        self._send(trace, deadline)

    def _advance(self, trace: _Trace, answer: Answer, deadline: float) -> None:
        if trace.hops[-1:] == [answer.hop]:
            # An answer to an earlier attempt for the last hop.
            return
        last = not answer.expired or answer.hop == self._destination or len(trace.hops) + 1 >= self._limits.max_hops
        if last:
            trace.end(answer.hop)
        else:
            self._next(trace, answer.hop, deadline)

    def _pop_ended(self) -> Iterator[_Trace]:
        for fd in [fd for fd, trace in self._running.items() if not trace.deadline]:
            self._poller.unregister(fd)
            trace = self._running.pop(fd)
            trace.socket.close()
            yield trace

    def close(self) -> None:
        """Close the sockets of traces in flight."""
        for trace in self._running.values():
            trace.socket.close()


def _open(nic: Nic, port: int) -> _Trace:
    # Do not connect: Linux gives a connected socket's packets a random flow hash, which a software switch on the same
    # kernel would use for ECMP instead of that of the 5-tuple.
    family = _family(nic.address)
    opened = socket.socket(family.family, socket.SOCK_DGRAM)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, nic.netdev.encode())
        opened.setsockopt(family.level, family.receive_errors, 1)
        opened.bind((nic.address, port))
        opened.setblocking(False)
    except OSError as error:
        opened.close()
        raise C4Error(f"cannot probe from {nic.name} ({nic.address} on {nic.netdev}, port {port}): {error}") from error
    return _Trace(port, opened)


def _read(sock: socket.socket, destination: str) -> Answer | None:
    try:
        _, ancillary, _, probed = sock.recvmsg(512, 1024, socket.MSG_ERRQUEUE)
    except OSError:
        return None
    if probed[0] != destination:
        # A late answer to a probe from this source port to another destination.
        return None
    for level, kind, data in ancillary:
        version = {(socket.IPPROTO_IP, _RECVERR4): 4, (socket.IPPROTO_IPV6, _RECVERR6): 6}.get((level, kind))
        if version:
            return parse_answer(version, data)
    return None


def parse_answer(version: int, data: bytes) -> Answer | None:
    """Parse a `sock_extended_err` with its offender, for IP `version`; None if it did not come from the network."""
    _, origin, kind, _ = _EXTENDED_ERROR.unpack_from(data)
    offender = data[_FAMILIES[version].offender]
    from_network = origin in {2, 3}
    return Answer(str(ipaddress.ip_address(offender)), kind == _TIME_EXCEEDED[version]) if from_network else None


def _family(address: str) -> _Family:
    return _FAMILIES[ipaddress.ip_address(address).version]
