"""Keeps queue pairs of programs of others on the paths of the plan: where it changes, they are asked to move."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from c4bench.attach.server import AttachedProcess, Moved, PathQuestion
from c4bench.budget import ATTACHED
from c4bench.errors import UnhealthyError
from c4bench.verbs.addressing import SOURCE_PORTS, label_for, port_of
from c4bench.wire.messages import AttachedMoves, AttachedPath

# A program connects many queue pairs at once: the master is asked about all of them together.
_SETTLED_S = 0.1
# A master that does not know the process, or is gone, is asked again after this.
_AGAIN_S = 5.0
# Queue pairs of a process that are followed: as many as are recorded.
QPS_AT_MOST = 4 * ATTACHED.records
Ask = Callable[[AttachedMoves], Awaitable[dict[int, int]]]
Send = Callable[[Mapping[str, int]], bool]


class _Planned(msgspec.Struct):
    """A queue pair on the path of `port`, 0 for its own, or about to move there from that of the port `before`.

    It is `refused` where it could not be moved.
    """

    path: AttachedPath
    device: int
    port: int
    before: int
    refused: bool = False


class PlannedQps:
    """The queue pairs of one process that are on planned paths.

    `ask` waits until the master wants some elsewhere; it raises UnhealthyError where that cannot be known. `send` takes
    a line to the process; false where that does not listen.
    """

    def __init__(self, process: AttachedProcess, ask: Ask, send: Send) -> None:
        self._process, self._ask, self._send = process, ask, send
        self._planned: dict[tuple[int, int], _Planned] = {}
        self._gone: list[AttachedPath] = []
        self._changed = asyncio.Event()

    def add(self, question: PathQuestion, label: int) -> None:
        """A queue pair has got this flow label; one of more than `QPS_AT_MOST` keeps it.

        It is 0 for one that did not wait for its path, which counts for nothing where there is another one by now.
        """
        key, port = (question.device, question.qp), port_of(label, 0, 0) if label else 0
        known = key in self._planned
        if (known and not label) or (not known and len(self._planned) >= QPS_AT_MOST):
            return
        path = AttachedPath(self._process.pid, question.source, question.destination, question.qp)
        self._planned[key] = _Planned(path, question.device, port, port)
        self._changed.set()

    def moved(self, said: Moved) -> None:
        """The process says which label a queue pair has now."""
        known = self._planned.get((said.device, said.moved))
        if known is None:
            return
        if not said.label:
            self._gone.append(self._planned.pop((said.device, said.moved)).path)
        elif said.refused:
            known.port, known.refused = known.before, True
        else:
            if (port := port_of(said.label, 0, 0)) in SOURCE_PORTS:
                known.before = port
            return
        self._changed.set()

    async def follow(self) -> None:
        """Have them moved whenever the plan changes, until cancelled."""
        asking: asyncio.Task[None] | None = None
        try:
            while True:
                await self._changed.wait()
                await asyncio.sleep(_SETTLED_S)
                self._changed.clear()
                if asking is not None:
                    asking.cancel()
                if self._planned or self._gone:
                    asking = asyncio.create_task(self._ask_once())
        finally:
            if asking is not None:
                asking.cancel()

    async def _ask_once(self) -> None:
        """Ask, and have moved what should be elsewhere; then there is something new to ask."""
        planned, gone = list(self._planned.values()), tuple(self._gone)
        refused = tuple(place for place, one in enumerate(planned) if one.refused)
        request = AttachedMoves(tuple(one.path for one in planned), tuple(one.port for one in planned), refused, gone)
        try:
            wanted = await self._ask(request)
        except UnhealthyError:
            await asyncio.sleep(_AGAIN_S)
            wanted = {}
        del self._gone[: len(gone)]
        for place, port in wanted.items():
            if place < len(planned) and port in SOURCE_PORTS:
                self._move(planned[place], port)
        self._changed.set()

    def _move(self, one: _Planned, port: int) -> None:
        one.before, one.port = one.port, port
        if not self._send({"move": one.path.qp, "device": one.device, "label": label_for(port)}):
            one.port, one.refused = one.before, True
