"""C4P at work: it answers flows with paths."""

from collections.abc import Mapping

from c4bench.c4p.atlas import Atlas
from c4bench.c4p.planner import plan
from c4bench.control.jobs import Job
from c4bench.model.fabric import Flow, Path
from c4bench.wire.messages import Empty, Release, Route


class Routing:
    """The paths of all jobs' flows; `jobs` are the master's."""

    def __init__(self, jobs: Mapping[str, Job]) -> None:
        self.atlas: Atlas | None = None
        self._jobs = jobs
        self._placed: dict[str, tuple[Flow, Path]] = {}

    async def route(self, request: Route) -> tuple[int, ...]:
        """Place these flows beside those already placed."""
        if self.atlas is None:
            return tuple(0 for _ in request.flows)
        fixed = {flow: path for flow, (_, path) in self._placed.items()}
        every = {flow.id: flow for flow, _ in self._placed.values()} | {flow.id: flow for flow in request.flows}
        placed = {placement.flow: placement.path for placement in plan(tuple(every.values()), self.atlas, fixed=fixed)}
        for flow in request.flows:
            self._placed[flow.id] = (flow, placed[flow.id])
            if flow.job in self._jobs:
                self._jobs[flow.job].placed[flow] = placed[flow.id]
        return tuple(placed[flow.id].source_port for flow in request.flows)

    async def release(self, request: Release) -> Empty:
        """These flows are gone."""
        for flow in request.flows:
            self._placed.pop(flow, None)
        return Empty()

    def forget(self, job: str) -> None:
        """A job has ended, and all its flows with it."""
        self._placed = {flow: placed for flow, placed in self._placed.items() if placed[0].job != job}
