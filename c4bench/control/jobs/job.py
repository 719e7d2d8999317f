"""An attempt of a job as the master sees it: where its ranks are and what they report."""

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any

import msgspec

from c4bench.budget import JOB
from c4bench.control.state.store import JobEntry, RankResult, Store
from c4bench.errors import UnhealthyError
from c4bench.foreign_text import one_line
from c4bench.model.fabric import Flow, Path
from c4bench.model.telemetry import RankRecord
from c4bench.record.telemetry import Recording
from c4bench.wire.job_names import is_check
from c4bench.wire.messages import JobSpec, Progress, Result

_logger = logging.getLogger(__name__)

# Results that a master keeps of a job, if it runs for long: a few of each rank, and many of a small job.
_RESULTS_KEPT = 16_384
_ENDED = ("exited", "killed")


class Job:
    """A running attempt: the newest results of its ranks, records that C4D has ingested, and paths of its flows.

    `saved` is what an earlier master has saved about the attempt.
    """

    def __init__(self, spec: JobSpec, store: Store | None = None, saved: Iterable[JobEntry] = ()) -> None:
        self.ranks_by_host: dict[str, set[int]] = {}
        self.become(spec)
        self._store = store or Store(None)
        self._kept = max(_RESULTS_KEPT, 4 * len(spec.members)) if self._store.durable else None
        self.results: deque[Result] = deque(maxlen=self._kept)
        # Of a master that runs for long: the bytes of each result, and of all.
        self._sizes: deque[int] = deque(maxlen=self._kept)
        self._result_bytes = 0
        self._received: dict[int, int] = {}
        self._count = 0
        for entry in saved:
            if isinstance(entry, RankResult):
                self._keep(entry.result)
        # A test keeps all records of its job; a master that runs for long has no use for them.
        self.recording = Recording(0 if self._store.durable else None)
        self.placed: dict[Flow, Path] = {}
        self._ended: dict[int, RankRecord] = {}
        self._changed = asyncio.Condition()

    def become(self, spec: JobSpec) -> None:
        """Have these ranks and NICs from now on: those of a job that we have not started come and go."""
        self.spec = spec
        self.ranks_by_host.clear()
        for member in spec.members:
            self.ranks_by_host.setdefault(member.host, set()).add(member.rank)
        self.ranks = {member.rank for member in spec.members}
        self.nics = {nic.name: nic for nic in spec.nics}

    def place(self, paths: Mapping[Flow, Path]) -> None:
        """Note the paths of flows. Those of ended flows are kept for tests, and not by a master that runs for long."""
        if self._store.durable:
            self.placed = dict(paths)
        else:
            self.placed |= paths

    async def add(self, result: Result) -> None:
        """Add a rank's result. A rank without an answer sends it again, so repeated numbers are ignored, except 0.

        A rank sends its results one after the other, with ascending numbers.
        """
        if result.number and result.number <= self._received.get(result.rank, 0):
            return
        self._store.append(self.spec.id, RankResult(result))
        if result.body.get("kind") == "error":
            values = (self.spec.id, result.rank, result.body.get("error"))
            _logger.warning("%s: rank %d failed: %s", *values, extra={"attempt": self.spec.id, "rank": result.rank})
        async with self._changed:
            self._keep(result)
            self._changed.notify_all()

    def _keep(self, result: Result) -> None:
        self._received[result.rank] = max(result.number, self._received.get(result.rank, 0))
        if self._kept is not None:
            self._make_room(len(msgspec.msgpack.encode(result.body)), self._kept)
        self.results.append(result)
        self._count += 1

    def _make_room(self, size_bytes: int, kept: int) -> None:
        """Forget the oldest results for one of this size."""
        while self._sizes and (self._result_bytes + size_bytes > JOB.bytes or len(self._sizes) == kept):
            self._result_bytes -= self._sizes.popleft()
            self.results.popleft()
        self._sizes.append(size_bytes)
        self._result_bytes += size_bytes

    async def note_ranks(self, records: Iterable[RankRecord]) -> None:
        """Note the states of ranks' processes, as an agent reports them."""
        ended = {record.rank: record for record in records if record.state in _ENDED}
        if new := ended.keys() - self._ended.keys():
            for rank in sorted(new):
                self._log_end(ended[rank])
            async with self._changed:
                self._ended |= ended
                self._changed.notify_all()

    def _log_end(self, rank: RankRecord) -> None:
        normal = logging.DEBUG if is_check(self.spec.id) else logging.INFO
        level = logging.WARNING if rank.exit_code else normal
        values = (self.spec.id, rank.rank, rank.state, rank.host, rank.exit_code)
        fields = {"attempt": self.spec.id, "rank": rank.rank, "host": rank.host, "exit_code": rank.exit_code}
        _logger.log(level, "%s: rank %d %s on %s, code %s", *values, extra=fields)

    async def wait(self, kind: str, count: int, timeout_s: float) -> list[dict[str, Any]]:
        """The first `count` results of this `kind`, in rank order.

        Raises UnhealthyError if a rank reports an error, if a rank ends without such a result, or after `timeout_s`.
        """
        try:
            async with asyncio.timeout(timeout_s), self._changed:
                await self._changed.wait_for(
                    lambda: len(self._of(kind)) >= count or self._failures() or self._ended_without(kind)
                )
        except TimeoutError:
            results = self._of(kind)
            ranks = sorted({result.rank for result in results})
            raise UnhealthyError(
                f"job {self.spec.id}: {len(results)} of {count} {kind!r} results in {timeout_s:g} s, from ranks {ranks}"
            ) from None
        if failures := self._failures():
            first = failures[0]
            raise UnhealthyError(f"job {self.spec.id}, rank {first.rank}: {one_line(first.body.get('error'))}")
        if len(self._of(kind)) < count:
            gone = self._ended_without(kind)[0]
            raise UnhealthyError(
                f"job {self.spec.id}, rank {gone.rank}: {gone.state} on {gone.host} with code {gone.exit_code} "
                f"before it sent a result {kind!r}; see its log in the agent's state directory there"
            )
        return [result.body for result in sorted(self._of(kind)[:count], key=lambda result: result.rank)]

    async def progress(self, first: int, ended: int, timeout_s: float) -> Progress:
        """Reports from number `first` on, once there is one or more than `ended` ranks ended, or after `timeout_s`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s), self._changed:
                await self._changed.wait_for(lambda: self._count > first or len(self._ended) > ended)
        exits = {rank: record.exit_code or 0 for rank, record in sorted(self._ended.items())}
        new = min(max(0, self._count - first), len(self.results))
        reports = tuple(islice(self.results, len(self.results) - new, None))
        return Progress(self.spec.id, len(self.spec.members), reports, exits, self._count)

    def _of(self, kind: str) -> list[Result]:
        return [result for result in self.results if result.body.get("kind") == kind]

    def _ended_without(self, kind: str) -> list[RankRecord]:
        ranks = {result.rank for result in self._of(kind)}
        return [record for rank, record in sorted(self._ended.items()) if rank not in ranks]

    def _failures(self) -> list[Result]:
        return self._of("error")
