"""The agent as a unit of a real systemd: deployed, found alive, brought back, and gone again."""

import tarfile
import time

import netns_hosts
import netns_systemd
import pytest

from c4bench import remote
from c4bench.control.cluster import Cluster
from c4bench.deploy import playbook
from c4bench.deploy.prepare import PACKAGES, prepare
from c4bench.inventory import load

REASON = netns_hosts.missing("systemctl") or netns_systemd.missing()
pytestmark = [pytest.mark.skipif(bool(REASON), reason=REASON), pytest.mark.nightly]
PORT = 7447
BACK_WITHIN_S = 20.0
# An agent that stands still is found as soon as a test can wait for.
IMPATIENT = """
mkdir -p /etc/systemd/system/c4bench.service.d
printf '[Service]\\nWatchdogSec=2\\n' > /etc/systemd/system/c4bench.service.d/drill.conf
systemctl daemon-reload
systemctl restart c4bench
"""


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    """A host that systemd runs, before anything is deployed."""
    directory = tmp_path_factory.mktemp("systemd")
    with netns_hosts.netns_hosts(1, directory, systemd=True) as made:
        yield Host(made, directory)


class Host:
    """The one host, and our playbooks on it."""

    def __init__(self, made, directory):
        self.made, self.directory, self.inventory = made.hosts[0], directory, load(made.inventory)
        self.variables = prepare(self.inventory, directory) | {"c4_master": netns_hosts.CONTROLLER, "c4_port": PORT}

    def play(self, name, *, check=False):
        """How many tasks changed something."""
        given = self.variables if name in ("deploy", "site") else {"c4_collected": str(self.directory)}
        found = playbook(
            name, self.inventory, hosts=["n1"], variables=given, directory=self.directory / "ansible", check=check
        )
        return found.hosts["n1"].changed

    def run(self, command):
        with remote.connect("n1", self.inventory.access["n1"]) as connection:
            return connection.run(["sh", "-c", command], timeout_s=60.0, check=False).stdout.decode().strip()

    def shown(self, *names):
        """What systemd says of the unit."""
        lines = self.run(f"systemctl show c4bench --property={','.join(names)}").splitlines()
        found = dict(line.split("=", 1) for line in lines)
        return tuple(found[name] for name in names)

    def answers(self):
        """The agent's answer to a master of its authority."""
        with Cluster(self.inventory.hosts, self.directory / "trust", netns_hosts.CONTROLLER, PORT) as cluster:
            return cluster.wait_hosts(["n1"], BACK_WITHIN_S)["n1"]

    def replaced(self, pid):
        """Wait until the unit is active with another main process; how often it was restarted."""
        deadline = time.monotonic() + BACK_WITHIN_S
        while (found := self.shown("ActiveState", "MainPID", "NRestarts"))[0] != "active" or found[1] == pid:
            assert time.monotonic() < deadline, self.run("systemctl status c4bench; journalctl -u c4bench")
            time.sleep(0.2)
        return found[2]


def test_the_unit_is_deployed_once_and_is_what_it_says(host):
    """Checked first, deployed, looked at, deployed again without a change: active, unprivileged, under watch."""
    before = host.made.files()
    assert host.play("deploy", check=True) > 0
    assert host.made.files() - before == set()
    assert host.play("site") > 0
    assert host.play("site") == 0
    assert host.play("site", check=True) == 0
    assert host.shown("ActiveState", "UnitFileState", "User") == ("active", "enabled", "c4bench")
    assert host.shown("NoNewPrivileges", "WatchdogUSec", "LimitMEMLOCK") == ("yes", "30s", "infinity")
    assert host.run("grep CapEff /proc/$(systemctl show -P MainPID c4bench)/status") == f"CapEff:\t{1 << 13:016x}"
    assert host.answers().code == f"/opt/c4bench/{PACKAGES}/c4bench"


def test_a_changed_configuration_replaces_the_agent(host):
    """An agent that has read the former file makes way for one that reads the new one, without being asked."""
    (before,) = host.shown("MainPID")
    host.variables["c4_cluster"] = "other"
    assert [host.play("deploy"), host.play("deploy")] == [3, 0]  # written, stopped, started
    assert host.shown("MainPID") not in {(before,), ("0",)}


def test_start_and_stop_say_what_they_change(host):
    """Each once, and nothing the second time; a stopped agent leaves no process."""
    assert [host.play("stop"), host.play("stop")] == [1, 0]
    assert host.run("pgrep -u c4bench") == ""
    assert [host.play("start"), host.play("start"), host.play("check")] == [1, 0, 0]


def test_logs_are_fetched_and_the_host_is_left_alone(host):
    """Tried only, nothing is fetched; then the agent's unit and the links are in it; no file of the host's changes."""
    before, fetched = host.made.files(), host.directory / "n1.tar.gz"
    assert host.play("collect", check=True) == 0
    assert not fetched.exists()
    assert [host.play("collect"), host.play("collect")] == [0, 0]
    with tarfile.open(fetched) as held:
        assert {"unit.log", "links.txt"} <= set(held.getnames())
    assert [path for path in host.made.files() - before if not path.startswith("/var/log/")] == []


@pytest.mark.parametrize("how", ["KILL", "STOP"])
def test_an_agent_that_dies_or_stands_still_is_brought_back(host, how, clean):
    """SIGKILL is followed by a restart; SIGSTOP by the watchdog, then a restart; the new one answers the master."""
    host.run(IMPATIENT)
    (pid,) = host.shown("MainPID")
    host.run(f"kill -{how} {pid}")
    assert host.replaced(pid) == "1"
    assert host.answers().code == f"/opt/c4bench/{PACKAGES}/c4bench"
    processes = host.run("pgrep -c -u c4bench")
    clean(processes == "2", f"agent under systemd, SIG{how}")


def test_nothing_stays(host, clean):
    """Teardown takes the unit, its user, its files and its processes."""
    host.run("rm -r /etc/systemd/system/c4bench.service.d")
    assert host.play("teardown", check=True) > 0
    assert host.play("teardown") > 0
    assert [host.play("teardown"), host.play("teardown", check=True)] == [0, 0]
    left = host.run(
        "ls -d /opt/c4bench* /etc/c4bench* /run/c4bench* /dev/shm/c4bench* /etc/systemd/system/*; id c4bench"
    )
    assert host.shown("LoadState") == ("not-found",)
    clean(left == "", "teardown under systemd")
