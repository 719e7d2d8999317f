"""The metrics page has a sample of everything in the master's health."""

import sys

from c4bench.control import master as http
from c4bench.control import pages
from c4bench.control.detection.telemetry import EvaluationTimes
from c4bench.control.pages.health import AgentHealth, Health, JobHealth, UnplannedFlows
from c4bench.control.pages.metrics import render
from c4bench.model.diagnosis import Component
from c4bench.model.event import AgentMissing
from c4bench.model.fabric import LinkLoad
from c4bench.model.steering import IsolatedHost

HEALTH = Health(
    agents={
        "h1": AgentHealth(False, "0.1.0", "", 7, {}, 2),
        "h0": AgentHealth(True, "0.1.0", "", 5, {"torn": 3, "late": 1}, 0, lag_s=0.25, window_bytes=9000),
    },
    jobs={"train": JobHealth("train.2", 16, 1)},
    missing=(AgentMissing(9.0, "h1", 2.0, "still"),),
    out=(IsolatedHost("h9", Component("nic", "h9/0"), 1.0, "train"),),
    diagnoses={"train": {"communication_slow": 2, "communication_hang": 1}},
    unplanned={"train.2": UnplannedFlows(4, "no path is known")},
    links={"10.0.0.2": LinkLoad(5e9, 2, 1e10, 4e9), "10.0.0.1": LinkLoad(1e9, 1, None)},
    missing_links=("10.0.0.9",),
    evaluations=EvaluationTimes().plus(0.02).plus(0.025).plus(9.0),
)
SAMPLES = """\
c4bench_agent_up{host="h0"} 1.0
c4bench_agent_up{host="h1"} 0.0
c4bench_agent_missing{host="h1"} 1.0
c4bench_telemetry_lag_seconds{host="h0"} 0.25
c4bench_windows_total{host="h0"} 5.0
c4bench_windows_total{host="h1"} 7.0
c4bench_window_bytes_total{host="h0"} 9000.0
c4bench_window_bytes_total{host="h1"} 0.0
c4bench_evaluation_seconds_bucket{le="0.001"} 0.0
c4bench_evaluation_seconds_bucket{le="0.0025"} 0.0
c4bench_evaluation_seconds_bucket{le="0.005"} 0.0
c4bench_evaluation_seconds_bucket{le="0.01"} 0.0
c4bench_evaluation_seconds_bucket{le="0.025"} 2.0
c4bench_evaluation_seconds_bucket{le="0.05"} 2.0
c4bench_evaluation_seconds_bucket{le="0.1"} 2.0
c4bench_evaluation_seconds_bucket{le="0.25"} 2.0
c4bench_evaluation_seconds_bucket{le="0.5"} 2.0
c4bench_evaluation_seconds_bucket{le="1.0"} 2.0
c4bench_evaluation_seconds_bucket{le="2.5"} 2.0
c4bench_evaluation_seconds_bucket{le="+Inf"} 3.0
c4bench_evaluation_seconds_count 3.0
c4bench_evaluation_seconds_sum 9.045
c4bench_dropped_total{host="h0",reason="late"} 1.0
c4bench_dropped_total{host="h0",reason="torn"} 3.0
c4bench_refused_total{host="h0"} 0.0
c4bench_refused_total{host="h1"} 2.0
c4bench_host_out{host="h9"} 1.0
c4bench_job_ranks{job="train"} 16.0
c4bench_restarts_total{job="train"} 1.0
c4bench_flows_unplanned{attempt="train.2"} 4.0
c4bench_diagnoses_total{job="train",syndrome="communication_hang"} 1.0
c4bench_diagnoses_total{job="train",syndrome="communication_slow"} 2.0
c4bench_link_offered_bytes_per_second{link="10.0.0.1"} 1.25e+08
c4bench_link_offered_bytes_per_second{link="10.0.0.2"} 6.25e+08
c4bench_link_rate_bytes_per_second{link="10.0.0.2"} 1.25e+09
c4bench_link_carried_bytes_per_second{link="10.0.0.2"} 5e+08
c4bench_link_missing{link="10.0.0.9"} 1.0
"""


def samples(lines, prefix="c4bench_"):
    """The samples of metrics with this prefix."""
    return [line for line in lines if line.startswith(prefix)]


def test_every_value_is_a_sample():
    """Agents, jobs, hosts out of service, flows without a path and diagnoses are there with their labels, in order."""
    lines = render(HEALTH).decode().splitlines()
    assert samples(lines) == SAMPLES.splitlines()
    assert "# TYPE c4bench_evaluation_seconds histogram" in lines
    assert "# TYPE c4bench_agent_up gauge" in lines
    assert "# TYPE c4bench_windows_total counter" in lines


def test_nothing_known_is_a_page_without_samples():
    """A master without agents and jobs has metrics and no values, but for evaluations, of which there were none."""
    lines = samples(render(Health({}, {}, (), (), {})).decode().splitlines())
    assert {line for line in lines if not line.startswith("c4bench_evaluation_seconds")} == set()
    assert {line.rsplit(" ", 1)[1] for line in lines} == {"0.0"}


def test_the_process_has_the_usual_metrics():
    """Memory and processor time of the master are those of this process."""
    held = [line.split() for line in samples(render(HEALTH).decode().splitlines(), "process_")]
    found = {name: float(value) for name, value in held}
    assert found["process_resident_memory_bytes"] > 1e7
    assert found["process_cpu_seconds_total"] > 0


def test_a_master_without_the_library_says_what_to_install(monkeypatch):
    """`/metrics` is then not implemented; the other pages need nothing."""
    monkeypatch.delattr(pages, "metrics", raising=False)
    monkeypatch.delitem(sys.modules, "c4bench.control.pages.metrics", raising=False)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    answer = http.page("/metrics", lambda: HEALTH, str)
    assert (answer.status_code, answer.body) == (501, http._NO_METRICS)
    assert http.page("/healthz", lambda: HEALTH, str).status_code == 200
