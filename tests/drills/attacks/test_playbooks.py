"""Attacks on playbooks by hosts and by the agent's user: what they say is data, and root writes in its own folders."""

import io
import json
import os
import shlex
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import netns_hosts
import pytest
import yaml

from c4bench import remote
from c4bench.inventory import load
from c4bench.resources import resource

REASON = netns_hosts.missing("setpriv")
pytestmark = pytest.mark.skipif(bool(REASON), reason=REASON)
AGENT = "c4bench"
# "" is the environment's ansible-core. The night tries these too; the last is the newest that this Python runs.
VERSIONS = ["", *(pytest.param(version, marks=pytest.mark.nightly) for version in ("==2.17.*", "==2.18.*", ">=2.19"))]
HONEST = {
    "management": "eth0",
    "nics": [{"device": "mlx5_0", "netdev": "ens1", "address": "10.0.0.1", "leaf": "leaf0/Ethernet1/1"}, {}],
    "gpus": [{"index": 0, "model": "NVIDIA H100 80GB HBM3", "pci": "0000:17:00.0", "nic": 0}],
}
# The agent's user makes links to root's file of its logs as soon as its `tar` runs, which reads a long log first.
SWAP = """
import os, time
from pathlib import Path
os.chdir("/run/c4bench")
for name in ("unit.log", "kernel.log", "long.log"):
    Path(name).write_text("mine")
os.truncate("long.log", 40 << 20)
print("ready", flush=True)
def of_tar(comm):
    try:
        return comm.read_text() == "tar\\n" and comm.stat().st_uid == os.getuid()
    except OSError:
        return False
while not any(map(of_tar, Path("/proc").glob("[0-9]*/comm"))):
    pass
time.sleep(0.02)
for name in ("unit.log", "kernel.log"):
    os.unlink(name), os.symlink("/root/victim", name)
"""
# It stops whatever reads its logs, at once.
STOP = "echo ready; while :; do pkill -STOP -u c4bench tar; sleep 0.01; done"
# It puts a link where an archive beside root's folder would be.
BESIDE = """
echo ready
while :; do for made in /tmp/c4bench-collected.*; do ln -s /root/victim $made.tar.gz; done; sleep 0.01; done 2>/dev/null
"""


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    """Four hosts that their attacker is root on; on the first, the agent's user has a folder of logs."""
    directory = tmp_path_factory.mktemp("playbooks")
    with netns_hosts.netns_hosts(4, directory) as made:
        inventory = yaml.safe_load(made.inventory.read_text())
        del inventory["all"]["vars"]["c4"]
        files = {name: str(directory / name.removeprefix("c4_")) for name in ("c4_bundle", "c4_trust")}
        inventory["all"]["vars"] |= files | {"c4_master": netns_hosts.CONTROLLER}
        made.inventory.write_text(yaml.safe_dump(inventory))
        hosts = Hosts(made, directory)
        hosts.run("n1", f"useradd -r -U {AGENT}; install -d -o {AGENT} -g {AGENT} /run/{AGENT}")
        hosts.run("n1", "echo precious > /root/victim; chmod 600 /root/victim")
        yield hosts


class Hosts:
    """The hosts, and Ansible's own command on this machine."""

    def __init__(self, made, directory):
        self.directory, self.inventory = directory, made.inventory
        self.access = load(made.inventory).access

    def run(self, host, command, given=""):
        with remote.connect(host, self.access[host]) as connection:
            done = connection.run(["sh", "-c", command], input=given.encode(), timeout_s=30.0, check=False)
        return done.stdout.decode().strip()

    def attack(self, command):
        """Start a command of the agent's user on the first host, and wait until it says that it is ready."""
        with_rights = ["setpriv", "--reuid", AGENT, "--regid", AGENT, "--init-groups", *command]
        session = remote.connect("n1", self.access["n1"]).start(with_rights)
        assert session.read_line(20.0) == "ready"
        return session

    def ansible(self, program, *words, folder=Path(sys.executable).parent):
        environment = {"ANSIBLE_NOCOLOR": "1", "ANSIBLE_HOME": str(self.directory / "ansible")}
        return subprocess.run(
            [str(folder / program), "-i", str(self.inventory), *words],
            env=os.environ | environment | {"PATH": f"{folder}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    def play(self, name, *words, folder=Path(sys.executable).parent):
        return self.ansible("ansible-playbook", str(resource("playbooks", f"{name}.yml")), *words, folder=folder)


@pytest.fixture(scope="module", params=VERSIONS)
def ansible(request, tmp_path_factory):
    """The folder of the programs of an ansible-core."""
    if not request.param:
        return Path(sys.executable).parent
    place = tmp_path_factory.mktemp("ansible")
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
    install = [str(place / "bin/pip"), "install", "-q", f"ansible-core{request.param}"]
    done = subprocess.run(install, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"offline: ansible-core {request.param} cannot be installed: {done.stderr.splitlines()[-1]}")
    return place / "bin"


def template(mark):
    """A template that makes a file on the machine that evaluates it."""
    return f"{{{{ lookup('pipe', 'touch {mark}') }}}}"


@pytest.fixture(scope="module")
def discovered(hosts, ansible):
    """What became of `discover.yml` where one host is honest and three are not; and where code would leave its mark."""
    mark = hosts.directory / "evaluated"
    says = {
        "n1": f"welcome\n{json.dumps(HONEST)}",
        "n2": json.dumps({"nics": [{"netdev": "ens1", "leaf": f"{template(mark)}\x1b[31m/Ethernet0"}]}),
        "n3": json.dumps({"disruptive": True, "nics": []}),
    }
    for host, said in says.items():
        program = f"#!/bin/sh\ncat <<'END'\n{said}\nEND\n"
        hosts.run(host, "cat > /usr/local/bin/python3; chmod 755 /usr/local/bin/python3", program)
    model = f'#!/bin/sh\ncat <<"END"\n0, {template(mark)}, 00000000:17:00.0\nEND\n'
    hosts.run("n4", "cat > /usr/local/bin/nvidia-smi; chmod 755 /usr/local/bin/nvidia-smi", model)
    done = hosts.play("discover", "-e", "c4_overwrite=true", folder=ansible)
    read = hosts.ansible("ansible", "all", "-m", "debug", "-a", "var=c4", folder=ansible)
    refusals = [line for line in done.stdout.splitlines() if line.startswith("fatal: ")]
    files = {path.parent.name: path for path in (hosts.directory / "host_vars").rglob("*") if path.is_file()}
    return done, {line.split("]")[0].rpartition("[")[2]: line for line in refusals}, files, read, mark


@pytest.mark.attack("strings of a host as templates")
def test_what_a_host_says_is_never_code_here(discovered):
    """A template in what a host or its neighbour reports is refused with host and key, and is not evaluated."""
    done, refusals, files, _, mark = discovered
    assert done.returncode == 2
    assert "n2: c4.nics[0].leaf has not the form that is accepted: " in refusals["n2"], done.stdout
    assert "\x1b" not in done.stdout + done.stderr
    assert not mark.exists()
    assert files.keys() == {"n1"}
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.attack("variant: a tool on the host reports a template")
def test_what_a_tool_on_a_host_says_is_never_code_here(discovered):
    """The name of a GPU, which our own program passes on, is checked like any other text."""
    _, refusals, _, _, mark = discovered
    assert "n4: c4.gpus[0].model has not the form that is accepted: " in refusals["n4"]
    assert not mark.exists()


@pytest.mark.attack("a host permits faults on itself")
def test_a_host_does_not_permit_faults(discovered):
    """A host that says `disruptive` is refused; of the others every file says that faults are not permitted."""
    _, refusals, files, _, _ = discovered
    assert "n3: c4 has the key 'disruptive'" in refusals["n3"]
    assert yaml.safe_load(files["n1"].read_text().replace("!unsafe ", ""))["c4"]["disruptive"] is False


def test_what_an_honest_host_says_is_read_alike_by_ansible_and_by_c4bench(hosts, discovered):
    """Each text is the text that the host reported, whatever the login printed before, also one like a number."""
    *_, read, _ = discovered
    told = json.loads(read.stdout.split("n1 | SUCCESS => ")[1].partition("\n}")[0] + "\n}")["c4"]
    assert told == {"disruptive": False} | HONEST
    facts = load(hosts.inventory).facts["n1"]
    assert (facts.gpus[0].pci, facts.nics[0].leaf) == ("0000:17:00.0", "leaf0/Ethernet1/1")


@pytest.mark.attack("variant: a problem that check.yml reports is a template")
def test_a_problem_that_a_host_reports_is_text(hosts, ansible):
    """`check.yml` shows it in printable ASCII, and evaluates nothing."""
    mark = hosts.directory / "checked"
    said = f"#!/bin/sh\nprintf '%s\\033[31m' {shlex.quote(template(mark))}; exit 1\n"
    hosts.run("n1", "mkdir -p /opt/c4bench/bin; cat > /opt/c4bench/bin/python; chmod 755 /opt/c4bench/bin/python", said)
    done = hosts.play("check", "-l", "n1", folder=ansible)
    hosts.run("n1", "rm -r /opt/c4bench")
    assert done.returncode == 2
    assert "the agent's Python does not work: ??" in done.stdout, done.stdout
    assert "\x1b" not in done.stdout + done.stderr
    assert not mark.exists()


@pytest.mark.attack("variant: a host names the files that are copied to it")
def test_a_host_does_not_choose_what_is_copied_to_it(hosts, ansible):
    """Modules whose results set variables, as facts may, do not make `deploy.yml` send another file of this machine."""
    (hosts.directory / "bundle").write_text("the bundle")
    (hosts.directory / "secret").write_text("the secret")
    facts = {"c4_bundle": str(hosts.directory / "secret")}
    said = {"changed": False, "stat": {"exists": False}, "ansible_facts": facts}
    python = f"#!/bin/sh\ncat >/dev/null\necho {shlex.quote(json.dumps(said))}\n"
    hosts.run("n2", "rm -f /usr/bin/python3; cat > /usr/bin/python3; chmod 755 /usr/bin/python3", python)
    hosts.run("n2", "ln -sf /bin/true /usr/local/bin/rm")  # what has been sent stays
    done = hosts.play("deploy", "-l", "n2", folder=ansible)
    assert "Copy the bundle" in done.stdout
    assert hosts.run("n2", "cat /tmp/ansible*/.source") == "the bundle", done.stdout
    hosts.run("n2", "/bin/rm -r /tmp/ansible*")


@pytest.fixture(scope="module")
def collected(hosts, ansible):
    """What `collect.yml` brings home from a host whose agent's user attacks it, and how long that takes."""
    write = f"setpriv --reuid {AGENT} --regid {AGENT} --clear-groups sh -c 'echo mine > /run/{AGENT}/rank.log'"
    hosts.run("n1", f"rm -f /run/{AGENT}/*; {write}")
    attackers = [hosts.attack(argv) for argv in (["/usr/bin/python3", "-c", SWAP], ["sh", "-c", BESIDE])]
    words = ("-l", "n1", "-e", f"c4_collected={hosts.directory / 'collected'}", "-e", "c4_seconds=2")
    first = hosts.play("collect", *words, folder=ansible)
    archive = hosts.directory / "collected/n1.tar.gz"
    kept = archive.read_bytes(), archive.stat().st_mode & 0o777
    attackers.append(hosts.attack(["sh", "-c", STOP]))
    began = time.monotonic()
    stopped = hosts.play("collect", *words, folder=ansible)
    elapsed_s = time.monotonic() - began
    left = hosts.run("n1", "pkill -u c4bench; ls -d /tmp/c4bench-collected*; pgrep -u c4bench tar")
    hosts.run("n1", "rm -f /tmp/c4bench-collected*.tar.gz")
    for session in attackers:
        session.close()
    return first, kept, stopped, elapsed_s, left.splitlines()


@pytest.mark.attack("logs become links")
def test_root_writes_through_no_link_of_the_agents_user(hosts, collected):
    """Whatever the agent's user makes of its logs, root's file is as before; the archive is private."""
    first, (content, mode), *_ = collected
    assert first.returncode == 0, first.stdout
    assert hosts.run("n1", "stat -c %a:%U /root/victim; cat /root/victim").split() == ["600:root", "precious"]
    with tarfile.open(fileobj=io.BytesIO(content)) as outer:
        assert all(member.isreg() for member in outer)
        assert {"agent-logs.tar", "links.txt"} <= set(outer.getnames())
        assert b"rank.log" in outer.extractfile("agent-logs.tar").read()
    assert mode == 0o600


@pytest.mark.attack("variant: a link beside root's folder")
def test_nothing_is_written_beside_roots_folder(collected):
    """The archive is made in the folder that only root can enter, and nothing stays on the host."""
    first, *_, left = collected
    assert first.returncode == 0
    assert [path for path in left if path.startswith("/tmp") and not path.endswith(".tar.gz")] == []


@pytest.mark.attack("a stopped tar")
def test_a_stopped_tar_holds_up_nobody(collected):
    """A `tar` of the agent's user that stands still is given up after its time; all else is brought home."""
    _, _, stopped, elapsed_s, left = collected
    assert stopped.returncode == 0, stopped.stdout
    assert elapsed_s < 25
    assert [line for line in left if line.isdigit()] == []
