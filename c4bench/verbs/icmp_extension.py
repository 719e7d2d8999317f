"""The interface that a packet came in by, from the extension of an ICMP error (RFC 4884, RFC 5837).

Linux sends it with the setting `icmp_errors_extension_mask`; several makes of switches do so for interfaces that have
no address of their own.
"""

import ipaddress
import struct
from typing import NamedTuple

_HEADER = struct.Struct("!BxH")
_OBJECT = struct.Struct("!HBB")
_INDEX = struct.Struct("!I")
_ADDRESS = struct.Struct("!Hxx")
_VERSION = 2
_INTERFACE = 2
# C-type: the role in the two highest bits (0 for the incoming interface), then what follows, in this order.
_ROLE, _HAS_INDEX, _HAS_ADDRESS, _HAS_NAME = 0xC0, 0x08, 0x04, 0x02
# Bytes of an address by its family number.
_SIZES = {1: 4, 2: 16}


class IncomingInterface(NamedTuple):
    """An interface of a switch: its address, its name and its number; "" and 0 where they are not given."""

    address: str = ""
    name: str = ""
    number: int = 0

    def hop(self, sender: str) -> str:
        """What to call the link that ends here: by its own address, else by the `sender` and the interface."""
        which = self.name or (str(self.number) if self.number else "")
        return self.address or (f"{sender}%{which}" if which else sender)


def incoming_interface(extension: bytes) -> IncomingInterface:
    """The incoming interface that an extension structure names; all empty if it names none or is malformed."""
    try:
        return _interface(extension)
    except (struct.error, UnicodeDecodeError, ValueError):
        return IncomingInterface()


def _interface(extension: bytes) -> IncomingInterface:
    version, _ = _HEADER.unpack_from(extension)
    at = _HEADER.size
    while version >> 4 == _VERSION and at < len(extension):
        size, kind, form = _OBJECT.unpack_from(extension, at)
        if not _OBJECT.size <= size <= len(extension) - at:
            break
        if kind == _INTERFACE and not form & _ROLE:
            return _parsed(extension[at + _OBJECT.size : at + size], form)
        at += size
    return IncomingInterface()


def _parsed(body: bytes, form: int) -> IncomingInterface:
    address, name, number, at = "", "", 0, 0
    if form & _HAS_INDEX:
        (number,) = _INDEX.unpack_from(body, at)
        at += _INDEX.size
    if form & _HAS_ADDRESS:
        (family,) = _ADDRESS.unpack_from(body, at)
        at += _ADDRESS.size
        size = _SIZES.get(family, 0)
        address = str(ipaddress.ip_address(body[at : at + size]))
        at += size
    if form & _HAS_NAME:
        name = body[at + 1 : at + body[at : at + 1].ljust(1, b"\0")[0]].rstrip(b"\0").decode()
    return IncomingInterface(address, name, number)
