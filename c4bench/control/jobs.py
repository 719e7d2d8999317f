"""Jobs as the master sees them: where their ranks are, what they report."""

import asyncio
import logging
from collections.abc import Iterable
from typing import Any

from c4bench.control.store import Entry, RankResult, Store
from c4bench.errors import UnhealthyError
from c4bench.model.fabric import Flow, Path
from c4bench.model.telemetry import RankRecord
from c4bench.record.telemetry import Recording
from c4bench.wire.messages import JobSpec, Result, is_check

_logger = logging.getLogger(__name__)

_RECORDS_KEPT = 1000  # of a master that lives on; a test wants all of its job's
_ENDED = ("exited", "killed")


class Job:
    """An attempt of a job that runs: results its ranks have sent, what C4D has heard of it, flows that C4P has placed.

    `before` is what an earlier master has written down of it.
    """

    def __init__(self, spec: JobSpec, store: Store | None = None, before: Iterable[Entry] = ()) -> None:
        self.spec = spec
        self._store = store or Store(None)
        self.results = [entry.result for entry in before if isinstance(entry, RankResult)]
        self._heard = {(result.rank, result.number) for result in self.results}
        self.recording = Recording(_RECORDS_KEPT if self._store.durable else None)
        self.placed: dict[Flow, Path] = {}
        self._ended: dict[int, RankRecord] = {}
        self._news = asyncio.Condition()

    async def add(self, result: Result) -> None:
        """A rank reports; perhaps once more, since it had no answer. Number 0 is no number."""
        if result.number and (result.rank, result.number) in self._heard:
            return
        self._heard.add((result.rank, result.number))
        self._store.append(self.spec.id, RankResult(result))
        if result.body.get("kind") == "error":
            said = (self.spec.id, result.rank, result.body.get("error"))
            _logger.warning("%s: rank %d failed: %s", *said, extra={"attempt": self.spec.id, "rank": result.rank})
        async with self._news:
            self.results.append(result)
            self._news.notify_all()

    async def note_ranks(self, records: Iterable[RankRecord]) -> None:
        """How an agent sees ranks of the job."""
        ended = {record.rank: record for record in records if record.state in _ENDED}
        if new := ended.keys() - self._ended.keys():
            for rank in sorted(new):
                self._log_end(ended[rank])
            async with self._news:
                self._ended |= ended
                self._news.notify_all()

    def _log_end(self, rank: RankRecord) -> None:
        well = logging.DEBUG if is_check(self.spec.id) else logging.INFO
        said = (self.spec.id, rank.rank, rank.state, rank.host, rank.exit_code)
        fields = {"attempt": self.spec.id, "rank": rank.rank, "host": rank.host, "exit_code": rank.exit_code}
        _logger.log(logging.WARNING if rank.exit_code else well, "%s: rank %d %s on %s, code %s", *said, extra=fields)

    async def wait(self, kind: str, count: int, timeout_s: float) -> list[dict[str, Any]]:
        """The first `count` results whose `kind` is that, in rank order.

        Raises UnhealthyError when a rank reports an error instead, when one has ended without, or after `timeout_s`.
        """
        try:
            async with asyncio.timeout(timeout_s), self._news:
                await self._news.wait_for(
                    lambda: len(self._of(kind)) >= count or self._failures() or self._ended_without(kind)
                )
        except TimeoutError:
            found = self._of(kind)
            heard = sorted({result.rank for result in found})
            raise UnhealthyError(
                f"job {self.spec.id}: {len(found)} of {count} {kind!r} results in {timeout_s:g} s, from ranks {heard}"
            ) from None
        if failures := self._failures():
            first = failures[0]
            raise UnhealthyError(f"job {self.spec.id}, rank {first.rank}: {first.body['error']}")
        if len(self._of(kind)) < count:
            gone = self._ended_without(kind)[0]
            raise UnhealthyError(
                f"job {self.spec.id}, rank {gone.rank}: {gone.state} on {gone.host} with code {gone.exit_code} "
                f"before it said {kind!r}; its log is in the agent's state directory there"
            )
        return [result.body for result in sorted(self._of(kind)[:count], key=lambda result: result.rank)]

    def _of(self, kind: str) -> list[Result]:
        return [result for result in self.results if result.body.get("kind") == kind]

    def _ended_without(self, kind: str) -> list[RankRecord]:
        heard = {result.rank for result in self._of(kind)}
        return [record for rank, record in sorted(self._ended.items()) if rank not in heard]

    def _failures(self) -> list[Result]:
        return self._of("error")
