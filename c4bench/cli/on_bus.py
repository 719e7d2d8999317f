"""A master on the bus: it waits until it leads, and ends when it does no more."""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from c4bench.bus.connection import FAILURES, Bus, bus_tls, opened
from c4bench.bus.leader import Leader
from c4bench.bus.master import BusDetection
from c4bench.bus.streams import Limits, make
from c4bench.bus.subjects import Subjects
from c4bench.control.master import Parts
from c4bench.control.paths.learning import PlannedFabric
from c4bench.control.state.store import Store
from c4bench.errors import UnhealthyError
from c4bench.wire.trust import Role


def own_name() -> str:
    """What this process is called on the bus."""
    return f"{socket.gethostname()}-{os.getpid()}"


class LeadingMaster:
    """A master that leads."""

    def __init__(self, address: str, cluster: str, trust: Path, limits: Limits) -> None:
        self._subjects, self._limits = Subjects(cluster), limits
        self._address, self._trust = address, trust
        self.leader = Leader(self._bus(Role.BUS_LEADER), own_name(), self._lost)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._serving: asyncio.Task[None] | None = None

    def _bus(self, role: Role) -> Bus:
        return Bus(self._address, bus_tls(self._trust, role), own_name(), self._subjects, role)

    def _lost(self, _: str) -> None:
        if self._loop is not None and self._serving is not None:
            self._loop.call_soon_threadsafe(self._serving.cancel)

    async def run(self, fabric: PlannedFabric | None, serve: Callable[[Parts], Awaitable[None]]) -> None:
        """Serve as the leader. Raises UnhealthyError when we lead no more."""
        self._loop, self._serving = asyncio.get_running_loop(), asyncio.ensure_future(self._serve(fabric, serve))
        try:
            await self._serving
        except (asyncio.CancelledError, Exception):
            if not self.leader.lost:
                raise
            # Whatever failed, this is why.
            raise UnhealthyError(self.leader.lost) from None

    async def _serve(self, fabric: PlannedFabric | None, serve: Callable[[Parts], Awaitable[None]]) -> None:
        async with opened(self._bus(Role.BUS_MASTER)) as bus:
            await self._make_streams(bus)
            store = Store(self.leader)
            detection = BusDetection(bus, store)
            parts = Parts(fabric=fabric, store=store, detection=detection)
            detection.recall(parts.log)
            # Before detectors are told which jobs there are.
            parts.jobs.restore()
            tasks = {asyncio.ensure_future(detection.run()), asyncio.ensure_future(serve(parts))}
            try:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _make_streams(self, bus: Bus) -> None:
        try:
            await make(bus, self._limits)
        except FAILURES as error:
            raise UnhealthyError(f"bus {bus.address}: its streams cannot be made: {error}") from None


@contextmanager
def leading(address: str, cluster: str, trust: Path, keeps_bytes: int) -> Iterator[LeadingMaster]:
    """A master that leads, which is waited for; the bus keeps so much telemetry.

    Raises UnhealthyError if the bus cannot be reached.
    """
    master = LeadingMaster(address, cluster, trust, Limits(size_bytes=keeps_bytes))
    try:
        master.leader.lead()
        yield master
    finally:
        master.leader.close()
