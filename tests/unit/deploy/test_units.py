"""The systemd units that we hand out, by systemd's own judgement."""

import shutil
import subprocess
import sys
from pathlib import Path

import jinja2
import pytest

pytestmark = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="not installed: systemd-analyze")
REPOSITORY = Path(__file__).parents[3]
AGENT = REPOSITORY / "playbooks/roles/agent/templates/agent.service.j2"
NIGHTLY = REPOSITORY / "docs/nightly"
PLACES = {"prefix": "/opt/c4bench", "name": "c4bench", "etc": "/etc/c4bench", "state": "/run/c4bench"}
# Of ten, by systemd's table of what a service could do; the network and the devices are what the agent is for.
EXPOSED_AT_MOST = 3.0


@pytest.fixture
def agent(tmp_path):
    """The agent's unit as Ansible writes it for a Python that is here."""
    template = jinja2.Environment(trim_blocks=True, undefined=jinja2.StrictUndefined).from_string(AGENT.read_text())
    unit = tmp_path / "c4bench.service"
    command = f"{sys.executable} -m c4bench.agent.main"
    unit.write_text(template.render(c4_at=PLACES, c4_agent=command, c4_agent_logs="--log-level=info"))
    return unit


def analyzed(*words):
    """What `systemd-analyze` says, and its exit code."""
    argv = ["systemd-analyze", *map(str, words)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_the_agents_unit_has_no_word_that_systemd_does_not_know(agent):
    """Not one complaint."""
    assert analyzed("verify", "--man=no", agent) == (0, "")


def test_the_agents_unit_is_exposed_no_further_than_it_must_be(agent):
    """Systemd's own score of what a service could do if it were taken over."""
    code, said = analyzed("security", "--offline=true", f"--threshold={EXPOSED_AT_MOST * 10:g}", "--no-pager", agent)
    assert code == 0, said


def test_the_nightlys_units_can_be_copied_as_they_are(tmp_path):
    """Timer and service are understood; the one thing that is the reader's is where his checkout lies."""
    for unit in NIGHTLY.glob("c4bench-nightly.*"):
        text = unit.read_text().replace("/srv/c4bench/.venv/bin/c4bench", sys.executable)
        (tmp_path / unit.name).write_text(text)
    for name in ("c4bench-nightly.service", "c4bench-nightly.timer"):
        assert analyzed("verify", "--man=no", tmp_path / name) == (0, "")
