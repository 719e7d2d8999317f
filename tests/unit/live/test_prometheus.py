"""Dashboard and alert rules fit the metrics that the master has, by Prometheus's own judgement."""

import datetime
import json
import re
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from pathlib import Path

import pytest
import yaml
from local_master import Scene

from c4bench.control.pages.health import AgentHealth, Health, JobHealth, UnplannedFlows
from c4bench.control.pages.metrics import render
from c4bench.deploy import authority
from c4bench.model.diagnosis import Component
from c4bench.model.event import AgentMissing
from c4bench.model.fabric import LinkLoad
from c4bench.model.steering import IsolatedHost

ROOT = Path(__file__).parents[3] / "reports/grafana"
RULES = yaml.safe_load((ROOT / "alerts.yml").read_text())["groups"][0]["rules"]
PANELS = json.loads((ROOT / "c4bench.json").read_text())["panels"]
EXPRESSIONS = [rule["expr"] for rule in RULES] + [target["expr"] for panel in PANELS for target in panel["targets"]]
METRIC = re.compile(r"\b(?:c4bench|process)_\w+")
SICK = Health(
    agents={"h0": AgentHealth(True, "0.2.0", "", 5, {"late": 1}, 0, lag_s=9.0)},
    jobs={"train": JobHealth("train~1", 16, 1)},
    missing=(AgentMissing(9.0, "h1", 2.0, "still"),),
    out=(IsolatedHost("h9", Component("nic", "h9/0"), 1.0, "train"),),
    diagnoses={"train": {"communication_slow": 2}},
    unplanned={"train~1": UnplannedFlows(4, "no path is known")},
    links={"10.0.0.1": LinkLoad(2e10, 1, 1e10, 1e10)},
    missing_links=("10.0.0.9",),
)


def tool(name):
    """A program of Prometheus; the test is skipped where there is none."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed (apt-get install prometheus)")
    return found


def samples():
    """Every sample of a master that has trouble of each kind: (metric with its labels, value)."""
    lines = [line for line in render(SICK).decode().splitlines() if not line.startswith("#")]
    return [tuple(line.rsplit(" ", 1)) for line in lines]


def test_every_metric_is_one_that_the_master_has():
    """No expression names a metric that the metrics page does not have; all but those of any process are shown."""
    known = {name.partition("{")[0] for name, _ in samples()}
    assert len(known) >= 14
    assert {name for text in EXPRESSIONS for name in METRIC.findall(text)} <= known
    shown = {name for panel in PANELS for target in panel["targets"] for name in METRIC.findall(target["expr"])}
    assert {name for name in known - shown if not name.startswith("process_")} == set()


def test_the_metrics_page_follows_prometheus_conventions():
    """Promtool finds nothing to say about the names, units and types of the metrics."""
    found = subprocess.run([tool("promtool"), "check", "metrics"], input=render(SICK), capture_output=True, check=False)
    assert (found.returncode, found.stdout, found.stderr) == (0, b"", b"")


def test_prometheus_can_parse_every_expression(tmp_path):
    """Promtool accepts the alert rules, and each panel's expression as a rule."""
    subprocess.run([tool("promtool"), "check", "rules", ROOT / "alerts.yml"], capture_output=True, check=True)
    rules = [{"record": f"panel:{number}", "expr": text} for number, text in enumerate(EXPRESSIONS)]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    found = subprocess.run(
        [tool("promtool"), "check", "rules", tmp_path / "rules.yml"], capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stdout + found.stderr


def unexpected(tmp_path, series, at, alert):
    """What promtool says of an alert that fires at a time for these series where none is expected; "" for none."""
    case = {
        "rule_files": [str(ROOT / "alerts.yml")],
        "evaluation_interval": "15s",
        "tests": [
            {
                "interval": "15s",
                "input_series": [{"series": name, "values": values} for name, values in series.items()],
                "alert_rule_test": [{"eval_time": at, "alertname": alert, "exp_alerts": []}],
            }
        ],
    }
    (tmp_path / "case.yml").write_text(yaml.safe_dump(case))
    command = [tool("promtool"), "test", "rules", tmp_path / "case.yml"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stderr


BAD = [
    ("C4benchMasterDown", {'up{job="c4bench",instance="m"}': "0x40"}, {"job": "c4bench", "instance": "m"}),
    ("C4benchAgentMissing", {'c4bench_agent_missing{host="h1"}': "1x40"}, {"host": "h1"}),
    (
        "C4benchTelemetryLate",
        {'c4bench_telemetry_lag_seconds{host="h1"}': "9x40", 'c4bench_agent_up{host="h1"}': "1x40"},
        {"host": "h1"},
    ),
    (
        "C4benchTelemetryRejected",
        {'c4bench_dropped_total{host="h1",reason="late"}': "0+30x80"},
        {"host": "h1", "reason": "late"},
    ),
    (
        "C4benchDiagnosis",
        {'c4bench_diagnoses_total{job="t",syndrome="s"}': "0x20 1x20"},
        {"job": "t", "syndrome": "s"},
    ),
    ("C4benchHostOut", {'c4bench_host_out{host="h9"}': "1x400"}, {"host": "h9"}),
    ("C4benchJobRestartsOften", {'c4bench_restarts_total{job="t"}': "0+1x40"}, {"job": "t"}),
    ("C4benchLinkMissing", {'c4bench_link_missing{link="a"}': "1x40"}, {"link": "a"}),
    (
        "C4benchLinkOverloaded",
        {
            'c4bench_link_offered_bytes_per_second{link="a"}': "20x60",
            'c4bench_link_carried_bytes_per_second{link="a"}': "9.8x60",
            'c4bench_link_rate_bytes_per_second{link="a"}': "10x60",
        },
        {"link": "a"},
    ),
    ("C4benchFlowsUnplanned", {'c4bench_flows_unplanned{attempt="t"}': "3x60"}, {"attempt": "t"}),
]
AT = {"C4benchTelemetryRejected": "15m", "C4benchDiagnosis": "6m", "C4benchHostOut": "90m"}


def test_every_alert_is_tried():
    """No rule is left out below."""
    assert [rule["alert"] for rule in RULES] == [alert for alert, _, _ in BAD]


@pytest.mark.parametrize(("alert", "series", "labels"), BAD)
def test_an_alert_fires_for_what_it_is_about(tmp_path, alert, series, labels):
    """Where no alert is expected, promtool finds none at the beginning, and later this one with its labels."""
    assert unexpected(tmp_path, series, "0s", alert) == ""
    found = unexpected(tmp_path, series, AT.get(alert, "8m"), alert)
    for name, text in (labels | {"alertname": alert}).items():
        assert f'{name}="{text}"' in found


HEALTHY = {
    "much is planned, little is carried": {"offered": 70, "carried": 0.5, "rate": 10},
    "all that a balanced plan brings is carried": {"offered": 10, "carried": 9.9, "rate": 10},
    "others fill the link": {"offered": 1, "carried": 9.9, "rate": 10},
    "the link is not counted": {"offered": 70, "rate": 10},
    "the rate is not known": {"offered": 70, "carried": 9.9},
}


@pytest.mark.parametrize("series", HEALTHY.values(), ids=HEALTHY)
def test_no_link_is_overloaded_in_a_healthy_job(tmp_path, series):
    """What could be sent at once is no alarm; nor is a link that carries all that it is planned to carry."""
    given = {f'c4bench_link_{name}_bytes_per_second{{link="a"}}': f"{value}x60" for name, value in series.items()}
    assert unexpected(tmp_path, given, "14m", "C4benchLinkOverloaded") == ""


def test_prometheus_scrapes_a_real_master(tmp_path):
    """Prometheus reads the metrics page with an observer's certificate, and knows the agent that is connected."""
    program = tool("prometheus")
    trust = tmp_path / "trust"
    authority.establish(trust, ["h0"], datetime.datetime.now(datetime.UTC))
    scene = Scene(trust, tmp_path)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    tls = {"ca_file": "trust/ca.pem", "cert_file": "trust/observer.pem", "key_file": "trust/observer.key"}
    scrape = {
        "job_name": "c4bench",
        "scheme": "https",
        "scrape_interval": "1s",
        "tls_config": tls | {"server_name": "master"},
        "static_configs": [{"targets": [scene.address]}],
    }
    shutil.copy(ROOT / "alerts.yml", tmp_path)
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump({"rule_files": ["alerts.yml"], "scrape_configs": [scrape]}))
    words = [f"--storage.tsdb.path={tmp_path / 'data'}", f"--web.listen-address=127.0.0.1:{port}"]
    server = subprocess.Popen(
        [program, f"--config.file={tmp_path / 'prometheus.yml'}", *words], stderr=subprocess.DEVNULL
    )
    try:
        assert value(port, 'up{job="c4bench"}') == "1"
        assert value(port, 'count(ALERTS{alertname="C4benchMasterDown"}) or vector(0)') == "0"
    finally:
        server.terminate()
        server.wait(30)
        scene.stop()


def value(port, query):
    """The value of a query once there is one."""
    deadline_s = time.monotonic() + 60
    while time.monotonic() < deadline_s:
        address = f"http://127.0.0.1:{port}/api/v1/query?query={urllib.parse.quote(query)}"
        try:
            with urllib.request.urlopen(address, timeout=5) as answer:
                results = json.load(answer)["data"]["result"]
        except OSError:
            results = []
        if results:
            return results[0]["value"][1]
        time.sleep(0.2)
    return None
