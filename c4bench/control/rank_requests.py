"""What ranks ask of the master through their agents: exchanges, meetings, messages, failures, paths and results."""

import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from c4bench.control.jobs import Job
from c4bench.control.meetings import Meetings
from c4bench.control.path_service import PathService
from c4bench.control.rendezvous import RendezvousService
from c4bench.control.telemetry import Detection
from c4bench.errors import UnhealthyError
from c4bench.model.recording import FailureReported, LossReported
from c4bench.model.telemetry import Failure
from c4bench.wire.job_names import JOB_ID_AT_MOST
from c4bench.wire.messages import (
    ChooseQps,
    Empty,
    Exchange,
    Fail,
    FollowGuidance,
    Meet,
    NetworkLost,
    PollInbox,
    RelayMessage,
    Release,
    Result,
    Route,
    Watch,
)
from c4bench.wire.peer import Handler

_logger = logging.getLogger(__name__)


class RankRequests:
    """Passes each request to the part of the master that answers it."""

    def __init__(
        self,
        jobs: Mapping[str, Job],
        rendezvous: RendezvousService,
        meetings: Meetings,
        detection: Detection,
        paths: PathService,
    ) -> None:
        self._jobs, self._rendezvous, self._meetings = jobs, rendezvous, meetings
        self._detection, self._paths = detection, paths

    def handlers(self, host: str) -> dict[str, Handler]:
        """The handler of each request of the agent of `host`, which speaks for jobs that have ranks there."""
        handlers = {
            "exchange": Handler(Exchange, self._rendezvous.exchange),
            "meet": Handler(Meet, self._meet),
            "fail": Handler(Fail, self._fail),
            "lost": Handler(NetworkLost, self._lost),
            "watch": Handler(Watch, self._watch),
            "word": Handler(RelayMessage, self._relay),
            "news": Handler(PollInbox, self._rendezvous.poll),
            "qps": Handler(ChooseQps, self._paths.choose_qps),
            "route": Handler(Route, self._paths.route),
            "release": Handler(Release, self._paths.release),
            "follow": Handler(FollowGuidance, self._paths.follow),
            "result": Handler(Result, self._result),
        }
        return {
            method: Handler(handler.body, partial(self._checked, host, handler.function))
            for method, handler in handlers.items()
        }

    async def _checked(self, host: str, function: Callable[[Any], Awaitable[Any]], request: Any) -> Any:  # noqa: ANN401
        job = self._jobs.get(request.job)
        if job is None and isinstance(request, Result):
            return Empty()  # a late one, of an attempt that has ended
        if job is None:
            raise UnhealthyError(f"job {request.job[:JOB_ID_AT_MOST]!r} does not run")
        here = job.ranks_by_host.get(host, ())
        speaks_for = request.rank if isinstance(request, Result | Meet) else None
        if not here or (speaks_for is not None and speaks_for not in here):
            values = (host, type(request).__name__, request.job)
            _logger.warning("agent of %s refused: its %s is for ranks of %s that it does not run", *values)
            raise UnhealthyError(f"the agent of {host} does not speak for these ranks of job {request.job}")
        return await function(request)

    async def _meet(self, request: Meet) -> Empty:
        await self._meetings.join(request)
        return Empty()

    async def _fail(self, request: Fail) -> Empty:
        self._rendezvous.fail(request)
        record = FailureReported(time.time(), request.job, request.comm, request.failure)
        self._detection.ingest(request.job, record)
        return Empty()

    async def _lost(self, request: NetworkLost) -> Empty:
        values, fields = (request.job, request.loss.rank, request.loss.component), {"attempt": request.job}
        _logger.warning("%s: rank %d continues without %s", *values, extra=fields)
        self._detection.ingest(request.job, LossReported(time.time(), request.job, request.comm, request.loss))
        return Empty()

    async def _relay(self, request: RelayMessage) -> Empty:
        self._rendezvous.relay(request)
        return Empty()

    async def _watch(self, request: Watch) -> Failure:
        return await self._rendezvous.watch(request.job, request.comm)

    async def _result(self, result: Result) -> Empty:
        job = self._jobs.get(result.job)
        if job is not None:
            await job.add(result)
        return Empty()
