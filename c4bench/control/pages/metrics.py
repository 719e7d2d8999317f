"""The master's health as Prometheus metrics; those of its process have the names that Prometheus's clients use."""

from collections.abc import Iterable, Sequence
from itertools import accumulate

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from c4bench.control.detection.telemetry import BOUNDS_S, EvaluationTimes
from c4bench.control.pages.health import Health

CONTENT_TYPE = CONTENT_TYPE_LATEST
_Samples = Sequence[tuple[tuple[str, ...], float]]


def render(health: Health) -> bytes:
    """The metrics in Prometheus's text format."""
    registry = CollectorRegistry()
    registry.register(_Collector(health))
    ProcessCollector(registry=registry)
    return generate_latest(registry)


class _Collector:
    def __init__(self, health: Health) -> None:
        self._health = health

    def collect(self) -> Iterable[Metric]:
        """Each metric with its samples."""
        health = self._health
        agents, jobs = sorted(health.agents.items()), sorted(health.jobs.items())
        dropped = [((host, why), n) for host, agent in agents for why, n in sorted(agent.dropped.items())]
        dropped += [(("bus", why), n) for why, n in sorted(health.left_out.items())]
        diagnoses = [
            ((job, what), n) for job, kinds in sorted(health.diagnoses.items()) for what, n in sorted(kinds.items())
        ]
        up = [((host,), agent.connected) for host, agent in agents]
        yield _gauge("agent_up", "1 while the host's agent is connected", ["host"], up)
        missing = sorted(((agent.host,), 1) for agent in health.missing)
        yield _gauge("agent_missing", "1 for an expected agent that has not been heard of for 5 s", ["host"], missing)
        lags = [((host,), agent.lag_s) for host, agent in agents if agent.lag_s is not None]
        yield _gauge("telemetry_lag_seconds", "age of the host's newest window", ["host"], lags)
        windows = [((host,), agent.windows) for host, agent in agents]
        yield _count("windows", "telemetry windows received", ["host"], windows)
        sizes = [((host,), agent.window_bytes) for host, agent in agents]
        yield _count("window_bytes", "bytes of messages with telemetry windows", ["host"], sizes)
        yield _histogram("evaluation_seconds", "how long C4D took to evaluate all telemetry", health.evaluations)
        yield _count("dropped", "rejected telemetry windows and records", ["host", "reason"], dropped)
        refused = [((host,), agent.refused) for host, agent in agents]
        yield _count("refused", "malformed messages", ["host"], refused)
        yield _gauge("host_out", "1 for a host out of service", ["host"], [((out.host,), 1) for out in health.out])
        ranks = [((name,), job.ranks) for name, job in jobs]
        yield _gauge("job_ranks", "ranks of a running job", ["job"], ranks)
        restarts = [((name,), job.restarts) for name, job in jobs]
        yield _count("restarts", "restarts of a running job", ["job"], restarts)
        unplanned = [((attempt,), flows.flows) for attempt, flows in sorted(health.unplanned.items())]
        yield _gauge("flows_unplanned", "flows that asked for a path and run on ECMP", ["attempt"], unplanned)
        yield _count("diagnoses", "diagnoses of C4D", ["job", "syndrome"], diagnoses)
        links = sorted(health.links.items())
        offered = [((link,), load.offered_bps / 8) for link, load in links]
        summary = "what planned flows bring to the link if all NICs send at once"
        yield _gauge("link_offered_bytes_per_second", summary, ["link"], offered)
        rates = [((link,), load.rate_bps / 8) for link, load in links if load.rate_bps is not None]
        yield _gauge("link_rate_bytes_per_second", "the link's rate, where it is known", ["link"], rates)
        carried = [((link,), load.carried_bps / 8) for link, load in links if load.carried_bps is not None]
        summary = "all traffic that switches counted on the link between their last readings"
        yield _gauge("link_carried_bytes_per_second", summary, ["link"], carried)
        lost = [((link,), 1) for link in health.missing_links]
        yield _gauge("link_missing", "1 for a link that answered probes before and does not now", ["link"], lost)


def _gauge(name: str, summary: str, labels: list[str], samples: _Samples) -> Metric:
    family = GaugeMetricFamily(f"c4bench_{name}", summary, labels=labels)
    for values, value in samples:
        family.add_metric(values, value)
    return family


def _count(name: str, summary: str, labels: list[str], samples: _Samples) -> Metric:
    family = CounterMetricFamily(f"c4bench_{name}", summary, labels=labels)
    for values, value in samples:
        family.add_metric(values, value)
    return family


def _histogram(name: str, summary: str, times: EvaluationTimes) -> Metric:
    counts = zip((*map(str, BOUNDS_S), "+Inf"), accumulate(times.counts), strict=True)
    return HistogramMetricFamily(f"c4bench_{name}", summary, buckets=list(counts), sum_value=times.sum_s)
