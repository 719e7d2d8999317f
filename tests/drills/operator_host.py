"""A deployed host with an operator who is not root and may call the injector by sudo."""

import json
import subprocess
import sys
from contextlib import contextmanager

import netns_hosts
from sessions import NIC, NICS, prepare_agents

from c4bench import remote
from c4bench.deploy import playbook
from c4bench.inventory import load

OPERATOR = netns_hosts.OPERATOR
INJECT = "/opt/c4bench/bin/inject"
# A rank of the agent's user: a process that writes its telemetry where ranks do.
RANK = """
import sys, time
from pathlib import Path
from c4bench.collective.recorder import Recorder
from c4bench.model.agent import AgentConfig
from c4bench.workload.controls import Controls
places = AgentConfig("", "", "")
places.ring("trial", 0).parent.mkdir(parents=True)
Recorder(places.ring("trial", 0), "trial", 0)
Controls.create(places.controls("trial", 0))
print("ready", flush=True)
time.sleep(600)
"""


@contextmanager
def operated(directory):
    """A host with the agent on it, and an operator who is not root."""
    with netns_hosts.netns_hosts(1, directory, {"disruptive": True, "nics": NICS}) as made:
        inventory = load(made.inventory)
        variables = prepare_agents(inventory, directory) | {"c4_operators": OPERATOR}
        playbook("deploy", inventory, hosts=["n1"], variables=variables, directory=directory)
        yield Host(made, directory, variables)


class Host:
    """The one host: reached as root, and as the operator."""

    def __init__(self, made, directory, variables):
        self.made, self.directory, self.variables = made, directory, variables
        self.access = load(made.inventory).access["n1"]
        self.inventory = directory / "operator.yml"
        self.inventory.write_text(made.inventory.read_text().replace("ansible_user: root", f"ansible_user: {OPERATOR}"))
        self.operator = load(self.inventory).access["n1"]
        self.root(NIC)

    def root(self, command):
        return self._run(self.access, command).stdout.decode().strip()

    def asked(self, command):
        """What the operator gets: exit code, and all that is said."""
        done = self._run(self.operator, command)
        return done.code, (done.stdout + done.stderr).decode()

    def fault(self, *words):
        done = subprocess.run(self._argv(words), capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr

    @contextmanager
    def held(self, *words):
        """A fault that is in force within the block, and must end by itself after it."""
        process = subprocess.Popen(self._argv(("apply", *words)), stdout=subprocess.PIPE, text=True)
        with process:
            assert json.loads(process.stdout.readline())["witness"]["seen"]
            yield
        assert process.returncode == 0

    def _argv(self, words):
        argv = [sys.executable, "-m", "c4bench.cli.main", "fault", *words, f"--hosts={self.inventory}", "--json"]
        return [*argv, *([f"--history={self.directory}/faults.jsonl"] if words[0] == "apply" else [])]

    def play(self, name, **variables):
        """Run one of our playbooks on the host, as root; how many of its tasks changed something."""
        found = playbook(
            name,
            load(self.directory / "hosts.yml"),
            hosts=["n1"],
            variables={"c4_operators": OPERATOR} | variables,
            directory=self.directory,
        )
        return found.hosts["n1"].changed

    def audit(self):
        return [json.loads(line) for line in self.root("cat /var/lib/c4bench/audit.jsonl || true").splitlines()]

    def as_operator(self, code, *words, before=""):
        """What Python code says in JSON, and its stderr: it runs as the operator in a shell that root has prepared."""
        argv = ["runuser", "-u", OPERATOR, "--", "/opt/c4bench/bin/python", "-c", code, *words]
        with remote.connect("n1", self.access) as connection:
            done = connection.run(["sh", "-c", f'{before} exec "$@"', "sh", *argv], timeout_s=60.0, check=False)
        return json.loads(done.stdout or "null"), done.stderr.decode()

    @staticmethod
    def _run(access, command):
        with remote.connect("n1", access) as connection:
            return connection.run(["sh", "-c", command], timeout_s=30.0, check=False)
