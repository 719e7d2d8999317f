"""The health of the master's agents and jobs, as plain data."""

import time
from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from c4bench.control.agents import AgentConnections, AgentLiveness
from c4bench.control.detection.detection import Detection
from c4bench.control.detection.telemetry import EvaluationTimes, TelemetryLoop
from c4bench.control.paths.service import PathService, UnplannedFlows
from c4bench.control.state.event_log import EventLog
from c4bench.control.state.registry import JobHealth, JobRegistry
from c4bench.model.diagnosis import Diagnosis
from c4bench.model.event import AgentMissing
from c4bench.model.fabric import LinkLoad
from c4bench.model.steering import IsolatedHost

# Telemetry is evaluated ten times a second; a master that has not for this long is not ready.
_EVALUATED_WITHIN_S = 2.0


class AgentHealth(msgspec.Struct, frozen=True):
    """One host's agent. `dropped` counts rejected records by reason, `refused` counts malformed messages.

    `window_bytes` are those of its messages with windows.
    `lag_s` is the age of its newest window, by the clocks of host and master; None before the first.
    """

    connected: bool
    version: str
    rdma: str
    windows: int
    dropped: Mapping[str, int]
    refused: int
    lag_s: float | None = None
    window_bytes: int = 0


class Health(msgspec.Struct, frozen=True):
    """The health of everything that the master knows.

    `diagnoses` are counted by job and syndrome. `unplanned` are flows without a planned path, by attempt. `links` are
    the loads that flows offer, by link; `missing_links` answered probes before and do not now. `evaluations` are how
    long C4D took each time to evaluate all telemetry. `left_out` counts what came over a bus and could not be used.
    `open` are diagnoses of attempts that run, and `link_names` the names of links as people say them, by address.
    """

    agents: dict[str, AgentHealth]
    jobs: dict[str, JobHealth]
    missing: tuple[AgentMissing, ...]
    out: tuple[IsolatedHost, ...]
    diagnoses: Mapping[str, Mapping[str, int]]
    unplanned: Mapping[str, UnplannedFlows] = MappingProxyType({})
    links: Mapping[str, LinkLoad] = MappingProxyType({})
    missing_links: tuple[str, ...] = ()
    evaluations: EvaluationTimes = EvaluationTimes()
    left_out: Mapping[str, int] = MappingProxyType({})
    open: tuple[Diagnosis, ...] = ()
    link_names: Mapping[str, str] = MappingProxyType({})


class MasterHealth:
    """Reads the health of a master's parts."""

    def __init__(
        self,
        agents: AgentConnections,
        liveness: AgentLiveness,
        registry: JobRegistry,
        log: EventLog,
        paths: PathService,
        detection: Detection,
        telemetry: TelemetryLoop,
    ) -> None:
        self._agents, self._liveness, self._registry, self._log = agents, liveness, registry, log
        self._paths, self._detection, self._telemetry = paths, detection, telemetry

    def unready(self) -> str:
        """Why telemetry is not being evaluated; "" if it is."""
        if obstacle := self._detection.obstacle():
            return obstacle
        evaluated_s = self._telemetry.evaluated_s
        if evaluated_s is None:
            return "telemetry has not been evaluated yet"
        late_s = time.time() - evaluated_s
        return f"telemetry has not been evaluated for {late_s:.1f} s" if late_s > _EVALUATED_WITHIN_S else ""

    def read(self) -> Health:
        """The health of agents, jobs and links now."""
        now_s = time.time()
        return Health(
            agents={host: self._agent(host, now_s) for host in self._agents.refused},
            jobs=self._registry.health(),
            missing=tuple(self._liveness.missing.values()),
            out=self._registry.isolated(),
            diagnoses=self._log.counts(),
            unplanned=self._paths.unplanned(),
            links=self._paths.link_loads(),
            missing_links=tuple(sorted(link.name for link in self._paths.controller.missing)),
            evaluations=self._telemetry.evaluations,
            left_out=dict(self._detection.left_out),
            open=self._log.open({running.spec.id for running in self._registry.jobs().values()}),
            link_names=dict(self._paths.named.names),
        )

    def _agent(self, host: str, now_s: float) -> AgentHealth:
        hello, telemetry = self._agents.newest_hello(host), self._telemetry
        ends_s = telemetry.window_ends_s.get(host)
        return AgentHealth(
            connected=host in self._agents.by_host,
            version=hello.version if hello else "",
            rdma=hello.rdma if hello else "",
            windows=telemetry.windows[host],
            dropped=dict(self._detection.dropped[host]),
            refused=self._agents.refused[host],
            lag_s=None if ends_s is None else now_s - ends_s,
            window_bytes=telemetry.window_bytes[host],
        )
