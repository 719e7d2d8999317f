"""How the master and its agents are, for people (`/health`) and for Prometheus (`/metrics`).

Both are plain GETs on the master's one port, so that nothing listens beside it: whoever asks shows a certificate.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING

import msgspec
from websockets.asyncio.server import ServerConnection
from websockets.datastructures import Headers
from websockets.http11 import Request, Response

from c4bench.model.event import AgentMissing
from c4bench.model.steering import IsolatedHost

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

_JSON = "application/json"


class AgentHealth(msgspec.Struct):
    """One host's agent. `dropped` counts records that were not believed, by why; `refused` messages not as agreed."""

    connected: bool = False
    version: str = ""
    rdma: str = ""
    windows: int = 0
    dropped: Counter[str] = msgspec.field(default_factory=Counter)
    refused: int = 0


class JobHealth(msgspec.Struct, frozen=True):
    """One job: the attempt that runs, its ranks, and how often it has been restarted."""

    attempt: str
    ranks: int
    restarts: int


class HealthPage(msgspec.Struct, frozen=True):
    """The health page. `diagnoses` are counted by job and syndrome."""

    agents: dict[str, AgentHealth]
    jobs: dict[str, JobHealth]
    missing: tuple[AgentMissing, ...]
    out: tuple[IsolatedHost, ...]
    diagnoses: Mapping[str, Mapping[str, int]]


def page(path: str, health: Callable[[], HealthPage]) -> Response | None:
    """The answer to a GET; None where the path is the websocket's."""
    match path:
        case "/health":
            return _response(HTTPStatus.OK, _JSON, msgspec.json.format(msgspec.json.encode(health()), indent=2) + b"\n")
        case "/metrics":
            # Few masters are ever asked, and the library takes a while to load.
            from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest  # noqa: PLC0415

            registry = CollectorRegistry()
            registry.register(_Collector(health()))
            return _response(HTTPStatus.OK, CONTENT_TYPE_LATEST, generate_latest(registry))
        case "/":
            return None
        case _:
            return _response(HTTPStatus.NOT_FOUND, "text/plain", b"there are /health and /metrics\n")


def serve_pages(health: Callable[[], HealthPage]) -> Callable[[ServerConnection, Request], Response | None]:
    """The hook by which `websockets` lets a request be answered without a websocket."""
    return lambda _connection, request: page(request.path, health)


def _response(status: HTTPStatus, kind: str, body: bytes) -> Response:
    headers = Headers([("Content-Type", kind), ("Content-Length", str(len(body))), ("Connection", "close")])
    return Response(status.value, status.phrase, headers, body)


class _Collector:
    """The health page as metrics."""

    def __init__(self, health: HealthPage) -> None:
        self._health = health

    def collect(self) -> "Iterable[Metric]":
        """Each metric with its samples."""
        health = self._health
        agents, jobs = sorted(health.agents.items()), sorted(health.jobs.items())
        dropped = [((host, why), n) for host, agent in agents for why, n in sorted(agent.dropped.items())]
        found = [
            ((job, what), n) for job, kinds in sorted(health.diagnoses.items()) for what, n in sorted(kinds.items())
        ]
        up = [((host,), agent.connected) for host, agent in agents]
        yield _gauge("agent_up", "1 while the host's agent is connected", ["host"], up)
        windows = [((host,), agent.windows) for host, agent in agents]
        yield _count("windows", "telemetry windows received", ["host"], windows)
        yield _count("dropped", "windows and records that were not believed", ["host", "reason"], dropped)
        refused = [((host,), agent.refused) for host, agent in agents]
        yield _count("refused", "messages that were not as agreed", ["host"], refused)
        yield _gauge("host_out", "1 for a host out of service", ["host"], [((out.host,), 1) for out in health.out])
        ranks = [((name,), job.ranks) for name, job in jobs]
        yield _gauge("job_ranks", "ranks of a running job", ["job"], ranks)
        restarts = [((name,), job.restarts) for name, job in jobs]
        yield _count("restarts", "restarts of a running job", ["job"], restarts)
        yield _count("diagnoses", "findings of C4D", ["job", "syndrome"], found)


_Samples = Sequence[tuple[tuple[str, ...], float]]


def _gauge(name: str, summary: str, labels: list[str], samples: _Samples) -> "Metric":
    from prometheus_client.metrics_core import GaugeMetricFamily  # noqa: PLC0415  (see `page`)

    return _filled(GaugeMetricFamily(f"c4bench_{name}", summary, labels=labels), samples)


def _count(name: str, summary: str, labels: list[str], samples: _Samples) -> "Metric":
    from prometheus_client.metrics_core import CounterMetricFamily  # noqa: PLC0415  (see `page`)

    return _filled(CounterMetricFamily(f"c4bench_{name}", summary, labels=labels), samples)


def _filled(family: "Metric", samples: _Samples) -> "Metric":
    for labels, value in samples:
        family.add_metric(labels, value)  # type: ignore[attr-defined]
    return family
