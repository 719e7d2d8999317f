"""Asks NCCL's RAS on this host for reports, and passes on those that say something new.

Any user of the host may listen on RAS's port before NCCL does. So a report is believed only from root, from the agent's
own user, and from users that the configuration names: those that own the port before the question and after the answer.
"""

import asyncio
import gzip
import hashlib
import logging
import os
import pwd
import re
import socket
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from pathlib import Path

from c4bench.evidence.limits import UnreadableError
from c4bench.evidence.ras_client import address, query
from c4bench.foreign_text import one_line
from c4bench.wire.framing import MESSAGE_BYTES_MAX
from c4bench.wire.messages import RasReport

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


_logger = logging.getLogger(__name__)

_TIMEOUT_S = 5.0
_LONGEST_NAME = 40
# What differs from one report to the next in any case: when it was made, and how long that took.
_VARIES = re.compile(rb'"(?:timestamp|collection_time_sec)": *[^,}\n]*')
# An unchanged report is sent again after so many, since that nothing moves is news as well.
_REPEAT = 3


class RasPoller:
    """Polls the RAS port at `place`, `HOST` or `HOST:PORT`; `send` passes a report to the master.

    `users` are believed besides root and our own user.
    """

    def __init__(
        self, place: str, every_s: float, send: Callable[[RasReport], Awaitable[None]], users: Iterable[str] = ()
    ) -> None:
        self._host, self._port = address(place)
        self._every_s, self._send = every_s, send
        self._users = tuple(users)
        self._digest, self._skipped = b"", 0
        self._trouble = ""

    async def run(self) -> None:
        """Poll until cancelled."""
        while True:
            await self.poll()
            await asyncio.sleep(self._every_s)

    async def poll(self) -> None:
        """Ask once. That nobody listens is normal: no process of NCCL runs here."""
        try:
            report = await asyncio.to_thread(self._ask)
        except UnreadableError as error:
            self._note(error.reason)
            return
        self._note("")
        digest = hashlib.blake2b(_VARIES.sub(b"", report), digest_size=16).digest()
        self._skipped = self._skipped + 1 if digest == self._digest else 0
        if self._skipped % _REPEAT:
            return
        self._digest = digest
        packed = gzip.compress(report, mtime=0)
        if len(packed) > MESSAGE_BYTES_MAX // 2:
            self._note(f"its report has {len(packed)} bytes, also compressed, which is too much for a message")
            return
        await self._send(RasReport(packed))

    def _ask(self) -> bytes:
        """The report of a listener that is believed. Raises UnreadableError."""
        self._check_owners()
        report = query(self._host, self._port, _TIMEOUT_S)
        self._check_owners()
        return report

    def _check_owners(self) -> None:
        """Raises UnreadableError if nobody of this host listens on the port, or somebody who is not believed."""
        if not is_here(self._host):
            raise UnreadableError("it is not on this host, so whose reports these are is not known; give localhost")
        found = owners(self._port)
        if not found:
            raise UnreadableError("nobody listens; no NCCL process with RAS runs there")
        if strangers := found - trusted_users(self._users):
            names = ", ".join(one_line(user_name(number), _LONGEST_NAME) for number in sorted(strangers))
            raise UnreadableError(f"{names} listens, who is not believed; ras_users (c4_ras_users) names users of jobs")

    def _note(self, trouble: str) -> None:
        """Log what is wrong once, not at every attempt."""
        if trouble and trouble != self._trouble:
            _logger.info("NCCL RAS on %s:%d: %s", self._host, self._port, trouble)
        self._trouble = trouble
