"""Numbered packets with the 5-tuple of data: the receiver counts those that arrive, and those that were overtaken.

They need no connection and no answer, so a loss shows in which direction it happened. Half of them look like data of a
reliable connection, half like acknowledgements (IBTA 9.2: the first byte is the opcode), because a switch may lose
only these. No queue pair has their number, so RDMA drops them. Only software NICs show them to a packet socket.
Packets of a train are larger, and look like data. The time that packets take that were sent back to back tells the rate
of the narrowest hop: that is their dispersion (Dovrolis et al., "Packet-dispersion techniques and a capacity-estimation
methodology", 2004).
"""

import ctypes
import fcntl
import ipaddress
import random
import socket
import struct
import time
import zlib
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import NamedTuple

from c4bench.errors import C4Error
from c4bench.model.fabric import Arrived, HopProbe, Nic, NumberedFlow, Train
from c4bench.verbs.probe import RateLimiter, open_sender, send_waiting

# Trains: size of the largest packets, the path MTU of RoCE.
_MOST_BYTES = 4096
_SIOCGIFMTU = 0x8921
_INTERFACE = struct.Struct("16sI20x")
# When the train was sent (ns), the packet's place, how many there are, and the size of each.
_TRAIN_HEADER = struct.Struct("!QHHH")
# Pauses are between so many times the mean.
_VARIES = 0.5, 1.5
_SEND_ONLY, _ACKNOWLEDGE = 0x04, 0x11
# Flags, partition key, reserved, a queue pair's number, and a packet sequence number that nobody expects.
_HEADER_REST = b"\x40\xff\xff\x00c4b\x00\x00\x00\x00"
_MARK = 0xC4B3C4B3
# Mark, the caller's token, and the packet's number.
_BODY = struct.Struct("!III")
_CHECKSUM = struct.Struct("!I")
_HEADER_BYTES = 1 + len(_HEADER_REST)
_BODY_END = _HEADER_BYTES + _BODY.size
_SIZE = _BODY_END + _CHECKSUM.size
# What a packet of a train has before zeros fill it up.
_TRAIN_SIZE = _SIZE + _TRAIN_HEADER.size
# Where UDP's payload begins behind the IP header, bytes.
_PAYLOAD_AT = {4: 28, 6: 48}
_SOURCE = {4: slice(12, 16), 6: slice(8, 24)}
_PROTOCOLS = {4: 0x0800, 6: 0x86DD}
_PORT_AT = {4: 20, 6: 40}
_TTL = 64
_ATTACH_FILTER = 26
_TIMESTAMP_NS = 35
_TIMESPEC = struct.Struct("=qq")
# Trains come in faster than they are read.
_QUEUE_BYTES = 4 << 20
# Classic BPF: code, jump if true, jump if false, operand.
_INSTRUCTION = struct.Struct("=HBBI")
_LOAD_WORD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06


def send_numbered(
    nic: Nic,
    flows: Sequence[NumberedFlow],
    count: int,
    token: int,
    rate_pps: float,
    traffic_class: int = 0,
    train_bytes: int = 0,
) -> None:
    """Send `count` packets of each kind on every flow, the flows in turn, at most `rate_pps` in all.

    With `train_bytes`, packet trains of so many bytes in their place. `token` is how the receiver knows them. Raises
    C4Error if they cannot be sent.
    """
    senders = dict[int, socket.socket]()
    pacer = TrainPacer(nic, rate_pps, token) if train_bytes else RateLimiter(rate_pps)
    try:
        for port in dict.fromkeys(flow.source_port for flow in flows):
            senders[port] = open_sender(nic, port, traffic_class, answers=False)
        for number in range(count):
            for opcode in (_SEND_ONLY,) if train_bytes else (_SEND_ONLY, _ACKNOWLEDGE):
                for flow in flows:
                    pacer.wait()
                    for packet in _packets(nic, opcode, token, number, train_bytes):
                        probe = HopProbe(flow.destination, flow.source_port, _TTL)
                        send_waiting(senders[flow.source_port], probe, packet)
    finally:
        for sender in senders.values():
            sender.close()


def _packets(nic: Nic, opcode: int, token: int, number: int, train_bytes: int) -> list[bytes]:
    """One packet, or all of a train, made before the first is sent."""
    if not train_bytes:
        return [_packet(opcode, token, number)]
    train = new_train(nic, train_bytes)
    return [_packet(opcode, token, number, _TRAIN_HEADER.pack(*one)).ljust(one.size, b"\0") for one in train]


def _packet(opcode: int, token: int, number: int, train_header: bytes = b"") -> bytes:
    data = bytes([opcode]) + _HEADER_REST + _BODY.pack(_MARK, token, number) + train_header
    return data + _CHECKSUM.pack(zlib.crc32(data))


class ArrivalCounter:
    """Counts the numbered packets with a `token` that reach a NIC, by sender and source port.

    Raises C4Error if this process may not capture on the NIC's interface (CAP_NET_RAW).
    """

    def __init__(self, nic: Nic, token: int) -> None:
        self._version = ipaddress.ip_address(nic.address).version
        self._token = token
        self._flows: dict[tuple[str, int], _Count] = {}
        try:
            self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0)
        except OSError as error:
            raise C4Error(f"cannot count packets on {nic.netdev}: {error.strerror}; keep CAP_NET_RAW") from error
        try:
            _attach(self.socket, _PAYLOAD_AT[self._version] + _HEADER_BYTES, token)
            self.socket.setsockopt(socket.SOL_SOCKET, _TIMESTAMP_NS, 1)
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _QUEUE_BYTES)
            self.socket.bind((nic.netdev, _PROTOCOLS[self._version]))
        except OSError as error:
            self.socket.close()
            raise C4Error(f"cannot count packets on {nic.netdev}: {error.strerror}") from error
        self.socket.setblocking(False)

    def read(self) -> None:
        """Count what has arrived; call it whenever `socket` is readable."""
        size = _PAYLOAD_AT[self._version] + _TRAIN_SIZE
        with suppress(BlockingIOError):
            while True:
                packet, ancillary, _, _ = self.socket.recvmsg(size, socket.CMSG_SPACE(_TIMESPEC.size))
                self._count(packet, ancillary)

    def _count(self, packet: bytes, ancillary: Sequence[tuple[int, int, bytes]]) -> None:
        payload = packet[_PAYLOAD_AT[self._version] :]
        data, checksum = payload[: -_CHECKSUM.size], payload[-_CHECKSUM.size :]
        if len(payload) not in {_SIZE, _TRAIN_SIZE} or _CHECKSUM.pack(zlib.crc32(data)) != checksum:
            return
        _, _, number = _BODY.unpack_from(payload, _HEADER_BYTES)
        ports = _PORT_AT[self._version]
        sender = str(ipaddress.ip_address(packet[_SOURCE[self._version]]))
        flow = self._flows.setdefault((sender, int.from_bytes(packet[ports : ports + 2])), _Count())
        if len(payload) == _SIZE:
            flow.add(number, is_data=payload[0] == _SEND_ONLY)
        elif (at_ns := _arrived_ns(ancillary)) is not None:
            flow.trains.add(number, TrainPacket(*_TRAIN_HEADER.unpack(data[_BODY_END:])), at_ns)

    def close(self) -> tuple[Arrived, ...]:
        """Stop; return what arrived."""
        self.read()
        self.socket.close()
        return tuple(
            Arrived(*flow, count.data, count.acks, count.late, count.trains.trains())
            for flow, count in sorted(self._flows.items())
        )


class _Count:
    """What arrived of one flow, and how often something was late that a packet with a higher number had overtaken.

    Packets that arrive late one after the other count once: one packet may have overtaken all of them.
    """

    def __init__(self) -> None:
        self.data = self.acks = self.late = 0
        self.trains = TrainTimer()
        self._highest = -1
        self._was_late = False

    def add(self, number: int, *, is_data: bool) -> None:
        """Count one packet."""
        self.data += is_data
        self.acks += not is_data
        is_late = number < self._highest
        self.late += is_late and not self._was_late
        self._was_late = is_late
        self._highest = max(number, self._highest)


def _arrived_ns(ancillary: Sequence[tuple[int, int, bytes]]) -> int | None:
    """When the kernel got a packet (ns since the epoch); None if it does not say."""
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, _TIMESTAMP_NS):
            seconds, rest_ns = _TIMESPEC.unpack_from(data)
            return int(seconds * 1_000_000_000 + rest_ns)
    return None


def _attach(capture: socket.socket, mark_at: int, token: int) -> None:
    """Let only packets pass that have mark and token (linux/filter.h): a NIC's own traffic would fill the socket."""
    program = b"".join(
        _INSTRUCTION.pack(*words)
        for words in (
            (_LOAD_WORD, 0, 0, mark_at),
            (_JUMP_IF_EQUAL, 0, 3, _MARK),
            (_LOAD_WORD, 0, 0, mark_at + 4),
            (_JUMP_IF_EQUAL, 0, 1, token),
            (_RETURN, 0, 0, 0xFFFF),
            (_RETURN, 0, 0, 0),
        )
    )
    code = ctypes.create_string_buffer(program)
    length = len(program) // _INSTRUCTION.size
    capture.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, struct.pack("HL", length, ctypes.addressof(code)))


class TrainPacket(NamedTuple):
    """A packet's part in its train of `length` packets of `size` bytes, which was sent at `sent_ns`."""

    sent_ns: int
    place: int
    length: int
    size: int


class TrainPacer:
    """Pauses before trains from a NIC, `rate_pps` of them a second on average.

    They vary, by NIC and by `token`, so that trains of several NICs do not meet again and again.
    """

    def __init__(self, nic: Nic, rate_pps: float, token: int) -> None:
        self._pause_s = 1 / rate_pps
        self._draw = random.Random(f"{nic.address} {token}")

    def wait(self) -> None:
        """Wait until the next train may be sent."""
        time.sleep(self._pause_s * self._draw.uniform(*_VARIES))


def new_train(nic: Nic, train_bytes: int) -> list[TrainPacket]:
    """The packets of a train from a NIC that is sent now. Raises C4Error if its interface has no MTU."""
    size = min(_MOST_BYTES, _mtu_bytes(nic) - _PAYLOAD_AT[ipaddress.ip_address(nic.address).version])
    length, now_ns = -(-train_bytes // size), time.time_ns()
    return [TrainPacket(now_ns, place, length, size) for place in range(length)]


def _mtu_bytes(nic: Nic) -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            found = fcntl.ioctl(any_socket, _SIOCGIFMTU, _INTERFACE.pack(nic.netdev.encode(), 0))
        except OSError as error:
            raise C4Error(f"cannot read the MTU of {nic.netdev}: {error.strerror}") from error
    return int(_INTERFACE.unpack(found)[1])


class TrainTimer:
    """Times the trains of one flow; those that do not arrive whole are left out."""

    def __init__(self) -> None:
        self._first: dict[int, TrainPacket] = {}
        self._arrived_ns: dict[int, dict[int, int]] = {}

    def add(self, number: int, packet: TrainPacket, at_ns: int) -> None:
        """Note when a packet of the train with this number arrived."""
        self._first.setdefault(number, packet)
        self._arrived_ns.setdefault(number, {})[packet.place] = at_ns

    def trains(self) -> tuple[Train, ...]:
        """Those that have arrived whole."""
        arrived = ((first, self._arrived_ns[number].values()) for number, first in sorted(self._first.items()))
        return tuple(_timed(first, times_ns) for first, times_ns in arrived if len(times_ns) == first.length > 1)


def _timed(packet: TrainPacket, arrived_ns: Collection[int]) -> Train:
    first_ns, last_ns = min(arrived_ns), max(arrived_ns)
    others_bytes = (packet.length - 1) * packet.size
    return Train((first_ns - packet.sent_ns) / 1e9, (last_ns - first_ns) / 1e9 / others_bytes)
