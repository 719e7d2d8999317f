"""The connection of an operator or an observer: events and health for both, jobs and paths for operators only."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any

from c4bench.control.jobs.attempts import JobService
from c4bench.control.pages.health import Health
from c4bench.control.paths.service import PathService
from c4bench.control.state.event_log import EventLog
from c4bench.errors import UsageError
from c4bench.wire.channel import Channel, ChannelClosed
from c4bench.wire.framing import MESSAGE_BYTES_MAX
from c4bench.wire.messages import (
    Empty,
    LaunchJob,
    LearnPaths,
    PathsJson,
    QueryProgress,
    QueryResults,
    ReturnHost,
    StopRanks,
    Subscribe,
)
from c4bench.wire.peer import Handler, Peer
from c4bench.wire.trust import Role

_logger = logging.getLogger(__name__)


class OperatorSession:
    """One connection; the certificate of the other end states its `role`."""

    def __init__(
        self,
        channel: Channel,
        role: Role,
        address: str,
        log: EventLog,
        jobs: JobService,
        paths: PathService,
        health: Callable[[], Health],
    ) -> None:
        self._log, self._jobs, self._paths, self._health = log, jobs, paths, health
        self._who = f"{role} at {address}"
        self._reports: set[asyncio.Task[None]] = set()
        handlers = {"subscribe": Handler(Subscribe, self._subscribe), "health": Handler(Empty, self._tell_health)}
        if role is Role.OPERATOR:
            handlers |= {
                "launch": Handler(LaunchJob, self._launch, MESSAGE_BYTES_MAX),
                "stop": Handler(StopRanks, self._stop),
                "restore": Handler(ReturnHost, self._return_host),
                "ask": Handler(QueryResults, self._query),
                "progress": Handler(QueryProgress, self._jobs.progress),
                "learn": Handler(LearnPaths, self._learn),
            }
        self._peer = Peer(channel, handlers)

    async def serve(self) -> None:
        """Serve until the connection closes."""
        _logger.info("%s connected", self._who)
        try:
            await self._peer.serve()
        finally:
            _logger.info("%s disconnected", self._who)
            for task in self._reports:
                task.cancel()

    async def _subscribe(self, request: Subscribe) -> Empty:
        self._reports.add(asyncio.create_task(self._report(request.first)))
        return Empty()

    async def _tell_health(self, _: Empty) -> Health:
        return self._health()

    async def _report(self, first: int) -> None:
        with contextlib.suppress(ChannelClosed):
            async for event in self._log.follow(first):
                await self._peer.note("event", event)

    async def _launch(self, request: LaunchJob) -> Empty:
        _logger.info("%s starts job %s", self._who, request.job.id, extra={"job": request.job.id})
        await self._jobs.start(request)
        return Empty()

    async def _stop(self, request: StopRanks) -> Empty:
        self._jobs.check_running(request.job)
        _logger.info("%s stops job %s", self._who, request.job, extra={"job": request.job})
        await self._jobs.stop(request.job)
        return Empty()

    async def _return_host(self, request: ReturnHost) -> Empty:
        if not self._jobs.return_hosts(request.host):
            isolated = ", ".join(self._jobs.isolated_hosts()) or "none"
            raise UsageError(
                f"{request.host} is not out of service, and no host is out because of it; out are {isolated}"
            )
        return Empty()

    async def _learn(self, request: LearnPaths) -> PathsJson:
        _logger.info("%s asks for the paths between %s", self._who, ", ".join(request.hosts))
        return PathsJson((await self._paths.learn_between(request.hosts)).to_json())

    async def _query(self, request: QueryResults) -> list[dict[str, Any]]:
        return await self._jobs.results(request)
