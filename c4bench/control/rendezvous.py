"""All-gather by name: how the ranks of a job find each other."""

import asyncio

from c4bench.errors import UnhealthyError
from c4bench.wire.messages import Exchange


class Board:
    """Pending exchanges of every job."""

    def __init__(self) -> None:
        self._pending: dict[tuple[str, str], dict[int, bytes]] = {}
        self._complete: dict[tuple[str, str], asyncio.Future[tuple[bytes, ...]]] = {}

    async def exchange(self, request: Exchange) -> tuple[bytes, ...]:
        """Wait for the other ranks of the key; payloads by rank. Raises UnhealthyError naming who did not come."""
        name = (request.job, request.key)
        given = self._pending.setdefault(name, {})
        complete = self._complete.setdefault(name, asyncio.get_running_loop().create_future())
        given[request.rank] = request.payload
        if len(given) == request.size:
            complete.set_result(tuple(given[rank] for rank in range(request.size)))
            del self._pending[name], self._complete[name]
        try:
            async with asyncio.timeout(request.timeout_s):
                return await asyncio.shield(complete)
        except TimeoutError:
            missing = sorted(set(range(request.size)) - set(given))
            raise UnhealthyError(
                f"job {request.job}: ranks {missing} did not come to {request.key!r} in {request.timeout_s:g} s"
            ) from None

    def forget(self, job: str) -> None:
        """Drop what a job that has ended left pending."""
        for name in [name for name in self._pending if name[0] == job]:
            del self._pending[name]
            self._complete.pop(name).cancel()
