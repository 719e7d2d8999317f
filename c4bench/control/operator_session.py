"""Where operators and observers are served: events for both, jobs for operators."""

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any

from c4bench.errors import UsageError
from c4bench.wire.channel import Channel, ChannelClosed
from c4bench.wire.messages import Empty, LaunchJob, QueryResults, ReturnHost, StopRanks, Subscribe
from c4bench.wire.peer import Handler, Peer
from c4bench.wire.trust import OBSERVER, OPERATOR

if TYPE_CHECKING:
    from c4bench.control.master import Master

ROLES = (OPERATOR, OBSERVER)
_logger = logging.getLogger(__name__)


class OperatorSession:
    """One line of an operator or an observer, as its certificate says."""

    def __init__(self, master: "Master", channel: Channel, role: str, address: str) -> None:
        self._master = master
        self._who = f"{role} at {address}"
        self._following: set[asyncio.Task[None]] = set()
        handlers = {"subscribe": Handler(Subscribe, self._subscribe)}
        if role == OPERATOR:
            handlers |= {
                "launch": Handler(LaunchJob, self._launch),
                "stop": Handler(StopRanks, self._stop),
                "restore": Handler(ReturnHost, self._restore),
                "ask": Handler(QueryResults, self._ask),
            }
        self._peer = Peer(channel, handlers)

    async def serve(self) -> None:
        """Until the line is closed."""
        _logger.info("%s connected", self._who)
        try:
            await self._peer.serve()
        finally:
            _logger.info("%s disconnected", self._who)
            for task in self._following:
                task.cancel()

    async def _subscribe(self, request: Subscribe) -> Empty:
        self._following.add(asyncio.create_task(self._report(request.first)))
        return Empty()

    async def _report(self, first: int) -> None:
        with contextlib.suppress(ChannelClosed):
            async for event in self._master.log.follow(first):
                await self._peer.note("event", event)

    async def _launch(self, request: LaunchJob) -> Empty:
        _logger.info("%s starts job %s", self._who, request.job.id, extra={"job": request.job.id})
        await self._master.start(request)
        return Empty()

    async def _stop(self, request: StopRanks) -> Empty:
        self._master.register.running(request.job)
        _logger.info("%s stops job %s", self._who, request.job, extra={"job": request.job})
        await self._master.stop(request.job)
        return Empty()

    async def _restore(self, request: ReturnHost) -> Empty:
        if not self._master.put_back(request.host):
            out = ", ".join(out.host for out in self._master.register.out())
            raise UsageError(
                f"{request.host} is not out of service, nor any host for its sake; out are {out or 'none'}"
            )
        return Empty()

    async def _ask(self, request: QueryResults) -> list[dict[str, Any]]:
        job = self._master.jobs[self._master.register.running(request.job).spec.id]
        return await job.wait(request.kind, request.count or len(job.spec.members), request.timeout_s)
