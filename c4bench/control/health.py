"""The health of the master's agents and jobs, as plain data."""

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from c4bench.control.evaluation_times import EvaluationTimes
from c4bench.model.diagnosis import Diagnosis
from c4bench.model.event import AgentMissing
from c4bench.model.fabric import LinkLoad
from c4bench.model.steering import IsolatedHost
from c4bench.wire.messages import Hello


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


class JobHealth(msgspec.Struct, frozen=True):
    """One job: the attempt that runs, its ranks, and how often it has been restarted."""

    attempt: str
    ranks: int
    restarts: int


class UnplannedFlows(msgspec.Struct, frozen=True):
    """How many live flows of a job asked for a path and are left to ECMP, and why."""

    flows: int
    reason: str


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


def agent_health(
    hello: Hello | None,
    *,
    connected: bool,
    windows: int,
    dropped: Mapping[str, int],
    refused: int,
    lag_s: float | None = None,
    window_bytes: int = 0,
) -> AgentHealth:
    """The health of one agent; `hello` is the newest that it sent, None if it has sent none."""
    version, rdma = (hello.version, hello.rdma) if hello else ("", "")
    return AgentHealth(connected, version, rdma, windows, dict(dropped), refused, lag_s, window_bytes)
