"""`c4bench master`, `watch`, `job` and `put-back` report bad input in one line before they change anything."""

import pytest

from c4bench.cli.main import main
from c4bench.cli.operators import status_lines
from c4bench.control.pages.health import AgentHealth, Health, JobHealth
from c4bench.model.diagnosis import Component, Diagnosis, Syndrome
from c4bench.model.event import AgentMissing
from c4bench.model.fabric import Host
from c4bench.model.steering import IsolatedHost
from c4bench.wire.messages import Meeting
from c4bench.workload.job_file import read

INVENTORY = "all:\n  hosts:\n    h0: {}\n    h1: {}\n"


@pytest.fixture
def job(tmp_path, capsys):
    """Run `c4bench job start` with this JOB.yml; return the exit code and the output."""

    def start(text):
        (tmp_path / "hosts.yml").write_text(INVENTORY)
        (tmp_path / "job.yml").write_text(text)
        trust = f"--trust={tmp_path / 'none'}"
        code = main(["job", "start", str(tmp_path / "job.yml"), f"--hosts={tmp_path / 'hosts.yml'}", trust])
        return code, capsys.readouterr().err

    return start


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name: [", "job.yml"),
        ("program: learning", "missing required field `name`"),
        ("{name: a, sparse: [h1]}", "unknown field `sparse`"),
        ("{name: a, spares: [h9]}", "no host 'h9' in the inventory; there are h0, h1"),
        ("{name: a, policy: {hang: reboot}}", "Invalid enum value 'reboot'"),
        ("{name: a, policy: {min_confidence: 2}}", "$.policy.min_confidence"),
        ("{name: a, policy: {hosts_per_hour: -1}}", "$.policy.hosts_per_hour"),
        ("{name: a, meeting: {name: m}}", "missing required field `size` - at `$.meeting`"),
        (
            "{name: a, parameters: {steps: all}}",
            "job.yml: program 'learning': Expected `int`, got `str` - at `$.steps`",
        ),
        ("{name: a, ranks: 3}", "ranks is 3, but there are 2 hosts for them"),
        ("{name: a, parameters: {checkpoints: c, model: {heads: 3}}}", "width 32 is not a multiple of heads 3"),
        ("{name: a, parameters: {checkpoints: c, backend: jax}}", "Invalid enum value 'jax' - at `$.backend`"),
        ("{name: a, program: dreaming}", "no program 'dreaming': one of bandwidth, "),
        ("{name: a, parameters: {checkpoints: c}}", "no certificate of 'operator'"),
    ],
)
def test_a_wrong_job_is_refused(job, text, words):
    """A bad JOB.yml is reported with file, place and valid values, and nothing is sent without a certificate."""
    code, said = job(text)
    assert code == 2
    assert said.count("\n") == 1
    assert words in said


def test_a_master_wants_certificates_and_an_address(tmp_path, capsys):
    """The master does not listen without certificates."""
    state = f"--state={tmp_path / 'state'}"
    assert main(["master", state, f"--trust={tmp_path}"]) == 2
    assert "no certificates" in capsys.readouterr().err
    assert main(["master", state, "--listen=here", f"--trust={tmp_path}"]) == 2
    assert "write ADDRESS:PORT" in capsys.readouterr().err
    assert not (tmp_path / "state").exists()


def test_a_job_is_launched_as_its_file_says(tmp_path):
    """Ranks on the hosts that are no spares, in a meeting if one is named; programs get their own parameters."""
    hosts = tuple(Host(name, "", ()) for name in ("h0", "h1", "h2"))
    path = tmp_path / "job.yml"
    path.write_text("{name: a, spares: [h1], seed: 7, parameters: {checkpoints: c}, meeting: {name: m, size: 4}}")
    launch = read(path, hosts)
    assert [member.host for member in launch.job.members] == ["h0", "h2"]
    assert [spare.name for spare in launch.spares] == ["h1"]
    assert (launch.job.meeting, launch.job.parameters, launch.job.seed) == (Meeting("m", 4), {"checkpoints": "c"}, 7)
    path.write_text("{name: a, program: training, ranks: 2}")
    assert [member.host for member in read(path, hosts).job.members] == ["h0", "h1"]
    path.write_text("{name: a, program: training}")
    assert read(path, hosts).job.meeting is None


def test_status_names_a_link_as_people_do():
    """A link is an address in records; a person reads the ports that it joins, and what is to be done about a host."""
    link = Component("link", "10.0.0.1")
    found = Diagnosis("j~1", Syndrome.COMMUNICATION_SLOW, link, 1.0, 2.0, 3.0, 0.9, (), "")
    health = Health(
        agents={"h0": AgentHealth(connected=True, version="", rdma="", windows=0, dropped={}, refused=0)},
        jobs={"j": JobHealth("j~1", 2, 1)},
        missing=(AgentMissing(9.0, "h1", 3.0, "still"),),
        out=(IsolatedHost("h2", Component("nic", "h2/0"), 1.0, "j"),),
        diagnoses={"j": {"communication_slow": 1}},
        open=(found,),
        link_names={"10.0.0.1": "leaf2/up1 > spine1/down2"},
    )
    assert list(status_lines(health)) == [
        "1 of 1 agents connected",
        "  h1: missing; ranks there: still",
        "  h2: out of service for nic h2/0; once repaired: c4bench put-back h2",
        "1 jobs run",
        "  j: 2 ranks, attempt j~1, 1 restarts, 1 diagnoses",
        "1 open diagnoses",
        "  j~1: communication_slow, link leaf2/up1 > spine1/down2, confidence 90%",
    ]
