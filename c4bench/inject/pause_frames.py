"""Pause frames of priority flow control (IEEE 802.1Qbb), as a NIC sends them that cannot take what arrives.

A frame stops one priority at the other end of the cable for up to 65535 quanta of 512 bit times. A storm is one frame
after another, each before the pause of the last one is over; a frame of no quanta ends it.
"""

import contextlib
import math
import os
import random
import socket
import struct
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from c4bench.errors import UnhealthyError
from c4bench.inject.detached import detach

_CONTROL_MAC = bytes.fromhex("0180c2000001")
_TYPE, _OPCODE = 0x8808, 0x0101
_HEADER = struct.Struct("!6s6sHHH")
_PRIORITIES, _MOST_QUANTA, _QUANTUM_BITS = 8, 0xFFFF, 512
_FRAME_BYTES = 60


def frame(source: bytes, priority: int, quanta: int) -> bytes:
    """The frame from the MAC address `source` that stops a priority for so many quanta; 0 ends a pause."""
    times = [quanta if number == priority else 0 for number in range(_PRIORITIES)]
    header = _HEADER.pack(_CONTROL_MAC, source, _TYPE, _OPCODE, 1 << priority)
    return (header + struct.pack(f"!{_PRIORITIES}H", *times)).ljust(_FRAME_BYTES, b"\0")


class Pauses(msgspec.Struct, frozen=True):
    """Pauses of one priority at the other ends of `netdevs`, whose links have `rate_bps`.

    Each lasts from `shortest_s` to `longest_s`, at random by `seed`, and they take the share `duty` of the time: with 1
    there is one that does not end.
    """

    netdevs: tuple[str, ...]
    rate_bps: float
    priority: int
    shortest_s: float
    longest_s: float
    duty: float
    seed: str


def send(pauses: Pauses, sockets: Sequence[socket.socket], goes_on: Callable[[], bool]) -> None:
    """Send them for as long as it goes on, which is asked before each frame; then let the other ends go on."""
    lengths = random.Random(pauses.seed)
    quanta_s = _QUANTUM_BITS / pauses.rate_bps
    sources = [sock.getsockname()[4] for sock in sockets]

    def stop_for(quanta: int) -> None:
        for sock, source in zip(sockets, sources, strict=True):
            with contextlib.suppress(OSError):  # the link is down, or its queue is full
                sock.send(frame(source, pauses.priority, quanta))

    while goes_on():
        pause_s = lengths.uniform(pauses.shortest_s, pauses.longest_s) if pauses.duty < 1 else math.inf
        end_s = time.monotonic() + pause_s
        while (left_s := end_s - time.monotonic()) > 0 and goes_on():
            stop_for(math.ceil(min(_MOST_QUANTA, left_s / quanta_s)))
            time.sleep(min(left_s, _MOST_QUANTA * quanta_s / 2))
        if pauses.duty < 1:
            time.sleep(pause_s * (1 - pauses.duty) / pauses.duty)
    stop_for(0)


class SendPauses(msgspec.Struct, frozen=True, tag="send_pauses"):
    """A detached process that sends `pauses` until `deadline_s` (monotonic clock), or until the file `path` is gone."""

    pauses: Pauses
    path: str
    deadline_s: float

    def __str__(self) -> str:
        """As a person would say it."""
        sent = self.pauses
        lengths = f"{sent.shortest_s * 1e3:g} to {sent.longest_s * 1e3:g} ms each, {sent.duty:.0%} of the time"
        lengths = lengths if sent.duty < 1 else "all the time"
        return f"send pause frames of priority {sent.priority} by {' '.join(sent.netdevs)}: {lengths}"

    def perform(self) -> None:
        """Start it. Raises UnhealthyError where raw frames cannot be sent."""
        with contextlib.ExitStack() as stack:
            try:
                sockets = [stack.enter_context(_raw_socket(netdev)) for netdev in self.pauses.netdevs]
                os.close(os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600))
            except OSError as error:
                raise UnhealthyError(f"no frames can be sent by {self.pauses.netdevs[0]}: {error.strerror}") from None
            child = os.fork()
            if child == 0:
                self._send_detached(sockets)
            os.waitpid(child, 0)

    def _send_detached(self, sockets: Sequence[socket.socket]) -> None:
        try:
            os.setsid()
            if os.fork():
                os._exit(0)
            detach(*(sock.fileno() for sock in sockets))
            send(self.pauses, sockets, lambda: time.monotonic() < self.deadline_s and Path(self.path).exists())
        finally:
            os._exit(0)


def _raw_socket(netdev: str) -> socket.socket:
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)  # of no protocol: it receives nothing
    try:
        sock.bind((netdev, 0))
    except OSError:
        sock.close()
        raise
    return sock
