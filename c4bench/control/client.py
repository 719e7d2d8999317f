"""A connection to a running master, for an operator or an observer, and jobs that run in the foreground over it."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from websockets.exceptions import WebSocketException

from c4bench.c4p.knowledge.path_knowledge import PathKnowledge
from c4bench.control.pages.health import Health
from c4bench.errors import UnhealthyError, UsageError
from c4bench.model.event import Event
from c4bench.model.steering import Action
from c4bench.wire.channel import master_channel
from c4bench.wire.messages import (
    PORT,
    Empty,
    LaunchJob,
    LearnPaths,
    PathsJson,
    Progress,
    QueryProgress,
    QueryResults,
    Result,
    ReturnHost,
    StopRanks,
    Subscribe,
)
from c4bench.wire.peer import Handler, Peer
from c4bench.wire.trust import Role, client_context

_POLL_S = 2.0  # how long the master holds back an answer that there is nothing new
_SIGNALLED = 128  # exit code of a process that a signal ended, as shells count

Report = Callable[[str, Result], None]


class Client:
    """The requests that a master answers; an observer may only `follow`, and ask for its `health`."""

    def __init__(self, peer: Peer, events: "asyncio.Queue[Event]", lost: "asyncio.Task[None]") -> None:
        self._peer, self._events, self._lost = peer, events, lost

    async def start(self, launch: LaunchJob) -> None:
        """Start a job. Raises UnhealthyError with the master's reason."""
        await self._peer.call("launch", launch, Empty)

    async def stop(self, job: str) -> None:
        """End a job."""
        await self._peer.call("stop", StopRanks(job), Empty)

    async def put_back(self, host: str) -> None:
        """Put a repaired host back into service."""
        await self._peer.call("restore", ReturnHost(host), Empty)

    async def ask(self, request: QueryResults) -> list[dict[str, Any]]:
        """Results of a job's ranks. Raises UnhealthyError if they do not arrive."""
        return await self._peer.call("ask", request, list[dict[str, Any]])

    async def progress(self, query: QueryProgress) -> Progress:
        """What a job's ranks have reported since. Raises UnhealthyError if the job does not run."""
        return await self._peer.call("progress", query, Progress)

    async def health(self) -> Health:
        """The health of agents, jobs and links, and the open diagnoses."""
        return await self._peer.call("health", Empty(), Health)

    async def learn_paths(self, hosts: Sequence[str]) -> PathKnowledge:
        """Have the paths between these hosts learnt now. Raises UnhealthyError with the master's reason."""
        answer = await self._peer.call("learn", LearnPaths(tuple(hosts)), PathsJson)
        return PathKnowledge.from_json(answer.json)

    async def follow(self, first: int = 0) -> AsyncIterator[Event]:
        """Events from number `first` on, until the connection is lost."""
        await self._peer.call("subscribe", Subscribe(first), Empty)
        while True:
            event = asyncio.ensure_future(self._events.get())
            await asyncio.wait({event, self._lost}, return_when=asyncio.FIRST_COMPLETED)
            if not event.done():
                event.cancel()
                return
            yield event.result()


@asynccontextmanager
async def dial(master: str, trust: Path, role: Role) -> AsyncIterator[Client]:
    """Connect to the master at `HOST[:PORT]`, in a `role` whose certificate is in `trust`.

    Raises UsageError without that certificate, UnhealthyError if there is no master or it refuses us.
    """
    host, _, port = master.partition(":")
    if not (trust / f"{role}.pem").exists():
        raise UsageError(f"{trust} has no certificate of {str(role)!r} (c4bench prepare makes them)")
    tls = client_context(trust / "ca.pem", trust / f"{role}.pem", trust / f"{role}.key")
    events: asyncio.Queue[Event] = asyncio.Queue()
    async with AsyncExitStack() as stack:
        try:
            channel = await stack.enter_async_context(master_channel(f"{host}:{port or PORT}", tls))
        except (OSError, WebSocketException, TimeoutError) as error:
            raise UnhealthyError(f"no master answers at {master}: {error}; start one with c4bench master") from None
        peer = Peer(channel, {"event": Handler(Event, events.put)})
        serving = asyncio.create_task(peer.serve())
        try:
            yield Client(peer, events, serving)
        finally:
            serving.cancel()


async def run_jobs(master: Client, launches: Sequence[LaunchJob], report: Report) -> int:
    """Run all jobs until they end; 0, or the exit code of the first of them, in the order given, whose rank failed.

    `report` gets a job's name and what a rank reported. Whatever ends this, no job runs on. Raises UnhealthyError with
    the master's reason if a job cannot start.
    """
    started: list[str] = []
    try:
        for launch in launches:
            await master.start(launch)
            started.append(launch.job.id)
        codes = await asyncio.gather(*(_follow(master, launch, report) for launch in launches))
    finally:
        for name in started:
            await master.stop(name)
    return next((code for code in codes if code), 0)


async def _follow(master: Client, launch: LaunchJob, report: Report) -> int:
    """Follow a job from attempt to attempt. One that may be restarted has the policy's time for it after a failure."""
    policy = launch.policy
    patience_s = policy.resume_within_s if Action.RESTART in (policy.hang, policy.slow) else 0.0
    attempt, first, failed_s = "", 0, None
    exits: dict[int, int] = {}
    while True:
        query = QueryProgress(launch.job.id, attempt, first, len(exits), _POLL_S)
        progress = await master.progress(query)
        if progress.attempt != attempt:
            attempt, first, failed_s = progress.attempt, 0, None
        for result in progress.reports:
            report(launch.job.id, result)
        first = max(progress.first, first + len(progress.reports))
        exits = progress.exits
        code = next((code for code in exits.values() if code), 0)
        if code:
            failed_s = failed_s or time.monotonic()
            if time.monotonic() - failed_s >= patience_s:
                return code if code > 0 else _SIGNALLED - code
        elif len(exits) == progress.ranks:
            return 0
