"""Sessions of pytest as somebody at a shell has them, and hosts to have them on."""

import os
import subprocess
import sys
import time

import netns_hosts

from c4bench import remote
from c4bench.deploy import authority, playbook, prepare
from c4bench.deploy.prepare import valid_from
from c4bench.inventory import load

NIC = """
ip link add nic0 type veth peer name far0
ip link set nic0 up; ip link set far0 up
ip address add 10.9.0.1/24 dev nic0
"""
NICS = [{"netdev": "nic0", "rate": "1gbit"}]


def start_pytest(folder, inventory, *words):
    """Begin one in `folder`, in its own process group, so that it can be killed with all that it has started."""
    argv = [sys.executable, "-m", "pytest", f"--hosts={inventory}", "-rs", "-p", "no:cacheprovider", *words]
    return subprocess.Popen(
        argv,
        cwd=folder,
        env=os.environ | {"COLUMNS": "300"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def until(holds, within_s=60.0):
    """Wait for it."""
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.05)


def prepare_agents(inventory, folder):
    """What `c4bench prepare` makes in `folder` for agents that start no ranks: a deployment is sooner done."""
    authority.establish(folder / "trust", [host.name for host in inventory.hosts], valid_from())
    made = {"c4_trust": folder / "trust", "c4_bundle": prepare.build(folder, ranks=False)}
    return {name: str(path.resolve()) for name, path in made.items()} | {"c4_master": netns_hosts.CONTROLLER}


class Deployed:
    """A host of namespaces, to which an agent is deployed; runs pytest here, and commands and playbooks there."""

    def __init__(self, made, folder, scenario, variables=None):
        self.made, self.inventory, self.folder = made.hosts[0], made.inventory, folder
        self.loaded = load(made.inventory)
        self.variables = variables or prepare_agents(self.loaded, folder / "conf")
        (folder / "test_it.py").write_text(scenario)
        (folder / "pytest.ini").write_text("[pytest]\nc4_fixtures = true\n")

    def play(self, name):
        """How many of a playbook's tasks changed something."""
        given = self.variables if name in ("deploy", "site") else {}
        done = playbook(name, self.loaded, hosts=["n1"], variables=given, directory=self.folder / "ansible")
        return done.hosts["n1"].changed

    def run(self, command):
        with remote.connect("n1", self.loaded.access["n1"]) as connection:
            return connection.run(["sh", "-c", command], timeout_s=30.0, check=False).stdout.decode()

    def listing(self):
        """Its NIC, routes and queues."""
        return self.run("ip -4 -json address show dev nic0 | sed 's/valid[^}]*//g'; ip route; tc qdisc show dev nic0")

    def start(self, *words):
        return start_pytest(self.folder, self.inventory, *words)

    def pytest(self, *words):
        """A whole session: its exit code, and what it said."""
        running = self.start(*words)
        said, _ = running.communicate(timeout=120)
        return running.returncode, said

    def fault(self, *words):
        """`c4bench fault` with these words: exit code and output."""
        argv = [sys.executable, "-m", "c4bench.cli.main", "fault", *words, f"--hosts={self.inventory}", "--json"]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr
