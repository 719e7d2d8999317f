"""Hosts that are shared, that break, that go away: real SSH, real sessions of pytest, nobody in the other's way."""

import os
import signal
import sys

import netns_hosts
import pytest
from sessions import start_pytest, until

from c4bench.record import RunDirectory

REASON = netns_hosts.missing()
pytestmark = pytest.mark.skipif(bool(REASON), reason=REASON)
SCENARIOS = """\
import time
from pathlib import Path
import pytest
HERE = Path(__file__).parent

def test_first(hosts, measure):
    measure("hosts", len(hosts), unit="1")

def test_waits(hosts):
    (HERE / "begun").touch()
    while not (HERE / "go").exists():
        time.sleep(0.05)

@pytest.mark.needs("gpu", hosts=1)
def test_gpu(hosts):
    pass
"""
LATER = "def test_later(hosts): pass\n"
FACTS = {"python": sys.executable}
FREE_WITHIN_S = 10.0


class User:
    """Somebody with an inventory, scenarios and a shell."""

    def __init__(self, inventory, folder):
        self.inventory, self.folder = inventory, folder
        folder.mkdir()
        (folder / "test_a.py").write_text(SCENARIOS)
        (folder / "test_b.py").write_text(LATER)
        (folder / "pytest.ini").write_text("[pytest]\nc4_fixtures = true\n")

    def start(self, *words):
        return start_pytest(self.folder, self.inventory, f"--c4-run-dir={self.folder / 'run'}", *words)

    def run(self, *words):
        running = self.start(*words)
        said, _ = running.communicate(timeout=120)
        return running.returncode, said

    def go(self):
        (self.folder / "go").touch()


@pytest.fixture
def lab(tmp_path):
    with netns_hosts.netns_hosts(2, tmp_path, FACTS) as made:
        yield made


def test_two_users_at_once(lab, tmp_path, clean):
    """The second is told who has the hosts, in one line with exit code 3; and has them once the first is killed."""
    first, second = User(lab.inventory, tmp_path / "first"), User(lab.inventory, tmp_path / "second")
    running = first.start()
    until((first.folder / "begun").exists)
    code, said = second.run("test_b.py")
    assert code == 3, said
    assert len(said.strip().splitlines()) == 1
    assert "n1 is reserved by root@" in said
    assert "wait for its end" in said
    os.killpg(running.pid, signal.SIGKILL)
    running.communicate()
    until(lambda: left(lab) == [], FREE_WITHIN_S)
    code, said = second.run("test_b.py")
    assert code == 0, said
    clean(left(lab) == [], "two users at once")


def left(lab):
    """What runs of ours on the hosts."""
    return [line for host in lab.hosts for line in host.processes() if "c4bench" in line]


def test_an_interrupted_run_is_resumed_scenario_by_scenario(lab, tmp_path):
    """What has passed before a SIGKILL is not run again and keeps its measurements; the rest is run."""
    user = User(lab.inventory, tmp_path / "user")
    running = user.start()
    until((user.folder / "begun").exists)
    os.killpg(running.pid, signal.SIGKILL)
    running.communicate()
    user.go()
    until(lambda: left(lab) == [], FREE_WITHIN_S)
    code, said = user.run("--c4-resume")
    assert code == 0, said
    assert "2 passed, 1 skipped, 1 deselected" in said
    assert "no-gpu: 0 of 1 hosts have it (n1: nvidia-smi lists none)" in said
    assert "nothing is degraded" in said
    assert [one.name for one in RunDirectory(user.folder / "run").timings()] == ["hosts"]


def test_what_is_required_is_not_skipped(lab, tmp_path):
    """A skip for want of a required capability is a failure with the same reason; an unknown one is a usage error."""
    user = User(lab.inventory, tmp_path / "user")
    code, said = user.run("test_a.py::test_gpu", "--c4-require=gpu")
    assert code == 1
    assert "required, and missing: no-gpu" in said
    code, said = user.run("--c4-require=warp")
    assert code == 2
    assert "'warp' is no capability; there are reachable" in said


def test_a_broken_host_is_one_reason_or_none(lab, tmp_path):
    """With a host down, all scenarios are skipped for one reason and the exit code is 3; partial runs use the other."""
    lab.hosts[1].end()
    user = User(lab.inventory, tmp_path / "user")
    user.go()
    code, said = user.run()
    assert code == 3, said
    assert "4 skipped" in said
    assert said.count("SKIPPED") == 1 or {line.split("]")[1] for line in said.splitlines() if "SKIPPED" in line}
    assert "broken-host: n2:" in said
    code, said = user.run("--c4-allow-partial")
    assert code == 0, said
    assert "without n2:" in said
    assert "3 passed, 1 skipped" in said


def test_a_host_that_goes_away_in_mid_run_stops_what_comes_after(lab, tmp_path):
    """Whatever runs goes on; the next module is not begun on a host that is no longer ours, and the exit code is 3."""
    user = User(lab.inventory, tmp_path / "user")
    running = user.start()
    until((user.folder / "begun").exists)
    lab.hosts[1].end()
    user.go()
    said, _ = running.communicate(timeout=120)
    assert running.returncode == 3, said
    assert "broken-host: n2: its reservation is lost" in said
    assert "2 passed, 2 skipped" in said


def test_hosts_are_drained_and_given_back(lab, tmp_path):
    """The scheduler's commands are run for every host, before and after; a refusal ends the run before it began."""
    user = User(lab.inventory, tmp_path / "user")
    hooks = tmp_path / "scheduler.yml"
    log = tmp_path / "log"
    say = f"echo $0 $1 >> {log}"
    hooks.write_text(
        f"drain: [sh, -c, '{say}', drain, '{{host}}']\nresume: [sh, -c, '{say}', resume, '{{host}}']\n"
        f"busy: [sh, -c, 'test -e {tmp_path}/idle || echo job; touch {tmp_path}/idle']\nwithin_s: 20\n"
    )
    code, said = user.run("test_b.py", f"--c4-scheduler={hooks}")
    assert code == 0, said
    assert log.read_text().split("\n")[:-1] == ["drain n1", "drain n2", "resume n1", "resume n2"]
    hooks.write_text("drain: [sh, -c, 'echo no such node >&2; exit 1']\nresume: ['true']\n")
    code, said = user.run("test_b.py", f"--c4-scheduler={hooks}", f"--c4-run-dir={tmp_path / 'refused'}")
    assert code == 3
    assert "was refused: no such node" in said.strip().splitlines()[-1]
