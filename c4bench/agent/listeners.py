"""Whose a listening TCP port of this host is: any user may listen on one that is free."""

import os
import pwd
import socket
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_TABLES = ("net/tcp", "net/tcp6")
_LISTEN = "0A"
# Columns of these tables (proc(5)): the local address and port, the state, and the user of the socket.
_LOCAL, _STATE, _USER = 1, 3, 7


def owners(port: int, proc: Path = Path("/proc/self")) -> frozenset[int]:
    """The users of all sockets that listen on this TCP port, on any address, in our network namespace."""
    found: set[int] = set()
    for table in _TABLES:
        with suppress(OSError):  # there is no IPv6
            for line in (proc / table).read_text().splitlines()[1:]:
                row = line.split()
                if len(row) > _USER and row[_STATE] == _LISTEN and int(row[_LOCAL].rpartition(":")[2], 16) == port:
                    found.add(int(row[_USER]))
    return frozenset(found)


def is_here(host: str) -> bool:
    """Whether a name or address is this host's own: whose ports on another host are cannot be seen from here."""
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)
    except OSError:
        return False
    return bool(found) and all(_can_bind(family, address) for family, _, _, _, address in found)


def _can_bind(family: int, address: tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]) -> bool:
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as here:
            here.bind(address)
    except OSError:
        return False
    return True


def trusted_users(names: Iterable[str]) -> frozenset[int]:
    """The numbers of root, of our own user, and of these users, as far as the host knows them."""
    found = {0, os.geteuid()}
    for name in names:
        with suppress(KeyError):
            found.add(pwd.getpwnam(name).pw_uid)
    return frozenset(found)


def user_name(number: int) -> str:
    """The name of a user, or the number if there is no such user."""
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)
