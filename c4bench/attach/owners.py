"""Which process has a queue pair, as the kernel says (rdma-netlink, as `rdma resource show qp` does)."""

import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

_NETLINK_RDMA = 20
_NLDEV, _GET, _QP_GET = 5 << 10, 1, 10
_DEVICE_INDEX, _DEVICE_NAME, _PORT, _QP_NUMBER, _PID = 1, 2, 3, 21, 28
_REQUEST, _DUMP = 1, 0x300
_ERROR, _DONE = 2, 3
_HEADER, _ATTRIBUTE, _NUMBER = struct.Struct("=IHHII"), struct.Struct("=HH"), struct.Struct("=I")
_MOST_BYTES, _WITHIN_S = 1 << 16, 0.1
_Attributes = dict[int, bytes]


def owner(device: str, qp: int) -> int | None:
    """The process that has a queue pair of a device.

    None where the kernel does not say: there is no such queue pair, the process has ended or is of another PID
    namespace, or the kernel is older than 5.0.
    """
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_RDMA) as asked:
            asked.settimeout(_WITHIN_S)
            for at_port in _ports(asked, device):
                for found in _ask(asked, _QP_GET, at_port | {_QP_NUMBER: _NUMBER.pack(qp)}):
                    return _process_of(found[_PID])
    except (OSError, KeyError, struct.error):
        pass
    return None


def _process_of(thread: bytes) -> int | None:
    """The kernel names the thread that made a queue pair. Raises OSError for one that has ended."""
    for line in Path(f"/proc/{_NUMBER.unpack(thread)[0]}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "Tgid":
            return int(value)
    return None


def _ports(asked: socket.socket, device: str) -> Iterator[_Attributes]:
    """A device is listed with the number of its ports; a queue pair is asked for at its own."""
    for listed in _ask(asked, _GET, {}):
        if listed[_DEVICE_NAME].rstrip(b"\0") == os.fsencode(device):
            for port in range(1, _NUMBER.unpack(listed[_PORT])[0] + 1):
                yield {_DEVICE_INDEX: listed[_DEVICE_INDEX], _PORT: _NUMBER.pack(port)}


def _ask(asked: socket.socket, command: int, attributes: _Attributes) -> list[_Attributes]:
    """Without attributes, of all devices. Raises OSError where the kernel does not answer."""
    body = b"".join(_ATTRIBUTE.pack(4 + len(value), kind) + value for kind, value in attributes.items())
    flags = _REQUEST | (0 if attributes else _DUMP)
    asked.send(_HEADER.pack(_HEADER.size + len(body), _NLDEV + command, flags, 1, 0) + body)
    answers: list[_Attributes] = []
    while True:
        for kind, message in _messages(asked.recv(_MOST_BYTES)):
            if kind in {_ERROR, _DONE}:
                return answers
            answers.append(dict(_attributes(message)))
        if attributes:
            return answers


def _messages(datagram: bytes) -> Iterator[tuple[int, bytes]]:
    while len(datagram) >= _HEADER.size:
        size, kind, *_ = _HEADER.unpack_from(datagram)
        yield kind, datagram[_HEADER.size : size]
        datagram = datagram[max(size + 3 & ~3, _HEADER.size) :]


def _attributes(message: bytes) -> Iterator[tuple[int, bytes]]:
    while len(message) >= _ATTRIBUTE.size:
        size, kind = _ATTRIBUTE.unpack_from(message)
        yield kind, message[_ATTRIBUTE.size : size]
        message = message[max(size + 3 & ~3, _ATTRIBUTE.size) :]
