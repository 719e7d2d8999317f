"""The agent's part in counting numbered packets: opens counters and reads them until the master asks."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from c4bench.errors import UnhealthyError
from c4bench.model.fabric import Nic
from c4bench.wire.messages import Empty
from c4bench.wire.numbered_packets import Heard, HeardRequest, ListenRequest

if TYPE_CHECKING:
    from c4bench.verbs.numbered_packets import ArrivalCounter


class ArrivalCounts:
    """Counters by NIC and token; `nic` returns this host's NIC of an index."""

    def __init__(self, nic: Callable[[int], Nic]) -> None:
        self._nic = nic
        self._counters: dict[tuple[int, int], ArrivalCounter] = {}

    async def listen(self, request: ListenRequest) -> Empty:
        """Count from now on. A master that never asks leaves nothing open."""
        from c4bench.verbs.numbered_packets import ArrivalCounter  # noqa: PLC0415  (seldom needed, and it takes memory)

        loop = asyncio.get_running_loop()
        counter = ArrivalCounter(self._nic(request.nic), request.token)
        loop.add_reader(counter.socket, counter.read)
        self._counters[request.nic, request.token] = counter
        loop.call_later(request.within_s, self._end, request.nic, request.token)
        return Empty()

    async def heard(self, request: HeardRequest) -> Heard:
        """End a count and return it. Raises UnhealthyError if there is none."""
        heard = self._end(request.nic, request.token)
        if heard is None:
            raise UnhealthyError(f"no packets are counted at NIC {request.nic} under {request.token}; ask sooner")
        return heard

    def _end(self, nic: int, token: int) -> Heard | None:
        counter = self._counters.pop((nic, token), None)
        if counter is None:
            return None
        asyncio.get_running_loop().remove_reader(counter.socket)
        return Heard(counter.close())
