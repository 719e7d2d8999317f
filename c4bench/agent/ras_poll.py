"""Asks NCCL's RAS on this host for reports, and passes on those that say something new.

Any user of the host may listen on RAS's port before NCCL does. So a report is believed only from root, from the agent's
own user, and from users that the configuration names: those that own the port before the question and after the answer.
"""

import asyncio
import gzip
import hashlib
import logging
import re
from collections.abc import Awaitable, Callable, Iterable

from c4bench.agent.listeners import is_here, owners, trusted_users, user_name
from c4bench.evidence.limits import UnreadableError
from c4bench.evidence.ras_client import address, query
from c4bench.foreign_text import one_line
from c4bench.wire.framing import MESSAGE_BYTES_MAX
from c4bench.wire.ras_report import RasReport

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
