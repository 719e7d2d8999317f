"""What ranks ask of the master through their agents: exchanges, meetings, messages, failures, paths and results."""

import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import msgspec

from c4bench.control.authorisation import Authorisation
from c4bench.control.detection.telemetry import Detection
from c4bench.control.jobs.job import Job
from c4bench.control.jobs.meetings import Meetings
from c4bench.control.jobs.rendezvous import RendezvousService
from c4bench.control.paths.service import PathService
from c4bench.foreign_text import one_line
from c4bench.model.recording import FailureReported, LossReported
from c4bench.model.telemetry import Failure
from c4bench.wire.messages import Empty, Fail, Meet, NetworkLost, RelayMessage, Result, Watch
from c4bench.wire.peer import Handler
from c4bench.wire.requests import OF_RANKS, Request, seat_of

# Characters.
_STATUS_AT_MOST = 80
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
        authorisation: Authorisation,
    ) -> None:
        self._jobs, self._rendezvous, self._meetings = jobs, rendezvous, meetings
        self._detection, self._authorisation = detection, authorisation
        self._answers: dict[str, Callable[[Any], Awaitable[Any]]] = {
            "exchange": rendezvous.exchange,
            "meet": self._meet,
            "fail": self._fail,
            "lost": self._lost,
            "watch": self._watch,
            "word": self._relay,
            "news": rendezvous.poll,
            "qps": paths.choose_qps,
            "route": paths.route,
            "release": paths.release,
            "follow": paths.follow,
            "result": self._result,
        }

    def handlers(self, host: str) -> dict[str, Handler]:
        """The handler of each request of ranks, by the agent of `host`, which speaks for what is there only."""
        return {
            name: Handler(request.body, partial(self._checked, host, request), request.most_bytes)
            for name, request in OF_RANKS.items()
        }

    async def _checked(self, host: str, request: Request, body: Any) -> Any:  # noqa: ANN401
        if not self._authorisation.admits(host, request, body):
            return Empty()
        return await self._answers[request.name](body)

    async def _meet(self, request: Meet) -> Empty:
        await self._meetings.join(request)
        return Empty()

    async def _fail(self, request: Fail) -> Empty:
        # Other ranks write it into their logs.
        said = request.failure
        failure = msgspec.structs.replace(
            said, reason=one_line(said.reason), status=one_line(said.status, _STATUS_AT_MOST)
        )
        request = msgspec.structs.replace(request, failure=failure)
        self._rendezvous.fail(request)
        seat = seat_of(request.failure.rank, request.seats)
        record = FailureReported(time.time(), request.job, request.comm, request.failure, seat)
        self._detection.ingest(request.job, record)
        return Empty()

    async def _lost(self, request: NetworkLost) -> Empty:
        values, fields = (request.job, request.loss.rank, request.loss.component), {"attempt": request.job}
        _logger.warning("%s: rank %d continues without %s", *values, extra=fields)
        seat = seat_of(request.loss.rank, request.seats)
        record = LossReported(time.time(), request.job, request.comm, request.loss, seat)
        self._detection.ingest(request.job, record)
        return Empty()

    async def _relay(self, request: RelayMessage) -> Empty:
        self._rendezvous.relay(request)
        return Empty()

    async def _watch(self, request: Watch) -> Failure:
        return await self._rendezvous.watch(request.job, request.comm, request.seats)

    async def _result(self, result: Result) -> Empty:
        job = self._jobs.get(result.job)
        if job is not None:
            await job.add(result)
        return Empty()
