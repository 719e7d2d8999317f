"""Who may do what on a host: an operator without root injects faults, and gets nothing else for it."""

import json
import shlex
import shutil
import subprocess
import tarfile

import netns_hosts
import pytest
from operator_host import INJECT, OPERATOR, RANK

from c4bench import remote
from c4bench.deploy import playbook
from c4bench.deploy.prepare import PACKAGES
from c4bench.errors import UnhealthyError
from c4bench.inventory import load
from c4bench.inventory.document import Document

REASON = netns_hosts.missing("sudo", "visudo")
pytestmark = pytest.mark.skipif(bool(REASON), reason=REASON)
CODE = f"/opt/c4bench/{PACKAGES}/c4bench"


@pytest.fixture
def play(host):
    """Run one of our playbooks on the host, as root; how many of its tasks changed something."""
    return host.play


def test_the_agent_and_what_it_starts_run_without_root(host):
    """Agent and spawner are the user's, with one capability, and can gain no other; their key is not the world's."""
    status = host.root("cat $(grep -lz c4bench[.]agent.main /proc/[0-9]*/cmdline | sed s/cmdline/status/)")
    lines = [line.split() for line in status.splitlines()]
    agents = [line[1:] for line in lines if line[0] == "Uid:"]
    assert agents == [[host.root("id -u c4bench")] * 4] * 2
    assert {line[1] for line in lines if line[0] in ("CapPrm:", "CapEff:")} == {f"{1 << 13:016x}"}
    assert {line[1] for line in lines if line[0] == "NoNewPrivs:"} == {"1"}
    assert host.asked("cat /etc/c4bench/key.pem")[0] == 1


def test_an_operator_injects_without_being_root(host):
    """A fault is held and reverted through the sudo rule, and the host's log says who asked."""
    before = len(host.audit())
    code, said, complaint = host.fault("apply", "nic.down", "n1/0", "--last-nic", "--lease=4s")
    assert code == 0, complaint
    assert json.loads(said)["witness"]["seen"]
    assert [line["user"] for line in host.audit()[before:]] == [OPERATOR] * 3
    assert "state UP" in host.root("ip link show nic0")


def test_a_fault_on_the_operators_own_session_is_still_refused(host):
    """The session's address gets past sudo: the NIC it came by cannot be taken down."""
    targets = "/etc/c4bench/targets.json"
    host.root(f"cp -a {targets} /root/targets; sed -i s/nic0/eth0/ {targets}")
    code, _, complaint = host.fault("apply", "nic.down", "n1/0", "--last-nic")
    host.root(f"mv /root/targets {targets}")
    assert code == 2
    assert "n1/0 carries your own session" in complaint


def test_the_rule_is_good_for_nothing_else(host):
    """No other command, no file of the operator's, no word of his environment becomes root's."""
    before = host.audit()
    host.asked(
        "mkdir -p /tmp/lure/c4bench; echo 'import os; os.mkdir(\"/root/caught\")' > /tmp/lure/c4bench/__init__.py"
    )
    lure = "cd /tmp/lure; PYTHONPATH=/tmp/lure PYTHONSTARTUP=/tmp/lure/c4bench/__init__.py PATH=/tmp/lure:$PATH"
    assert host.asked(f"{lure} sudo -n {INJECT} status") == (0, "")
    assert host.root("ls -d /root/caught || true") == ""
    for command in ("id", f"{INJECT}x", "/opt/c4bench/bin/python -c 0", "sh -c 0"):
        code, said = host.asked(f"sudo -n {command}")
        assert code == 1, said
        assert "password is required" in said
    assert host.root("find /opt/c4bench /etc/c4bench /etc/sudoers.d/c4bench -perm /022 ! -type l -o ! -user root") == ""
    assert host.audit() == before


def test_no_word_leads_root_to_a_file_of_the_operator_s(host):
    """An id, a switch or a job that points out of the journal is refused before anything is read or made."""
    planted = {"plan": {"revert": [{"type": "run", "argv": ["mkdir", "/root/caught"]}]}}
    host.asked(f"mkdir -p /tmp/faults; echo {shlex.quote(json.dumps(planted))} > /tmp/faults/evil.json")
    switch = {"fault": "link.down", "host": "../../../../tmp", "port": "x"}
    rank = {"fault": "process.kill", "host": "n1", "job": "../../tmp", "rank": 0}
    for words, says in (
        (["heal", "../../../../tmp/faults/evil"], "may not begin with a dot or contain a slash"),
        (["hold", json.dumps(switch)], "is not a host or switch in /etc/c4bench/targets.json"),
        (["hold", json.dumps(rank)], "may not begin with a dot or contain a slash"),
    ):
        code, said = host.asked(f"sudo -n {INJECT} {shlex.join(words)}")
        assert code == 2, said
        assert says in said
    assert host.root("ls -d /root/caught /tmp/lock || true") == ""


def test_a_rank_of_the_agent_s_user_is_stopped_and_goes_on(host):
    """The injector reaches the unprivileged ranks; one that claims to be somebody else's process is left alone."""
    as_agent = [
        "setpriv",
        "--reuid=c4bench",
        "--regid=c4bench",
        "--clear-groups",
        "/opt/c4bench/bin/python",
        "-c",
        RANK,
    ]
    with remote.connect("n1", host.access) as connection:
        session = connection.start(as_agent)
        try:
            assert session.read_line(30.0) == "ready"
            code, said, complaint = host.fault("apply", "process.stop", "trial:0@n1", "--lease=2s")
            assert code == 0, complaint
            assert json.loads(said)["witness"]["seen"]
            host.root("chown root /dev/shm/c4bench/trial/0.ring")
            code, _, complaint = host.fault("apply", "process.stop", "trial:0@n1", "--lease=2s")
            assert code == 3
            assert "is another user's" in complaint
        finally:
            host.root("pkill -u c4bench -f recorder; rm -r /dev/shm/c4bench/trial")
            session.close()


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("rm /etc/sudoers.d/c4bench", f"{OPERATOR} may not call {INJECT} by sudo; deploy again"),
        (f"sed -i s,{INJECT},/opt/other/bin/inject, /etc/sudoers.d/c4bench", f"{OPERATOR} may not call {INJECT}"),
        (f"mv {INJECT} {INJECT}.away", f"there is no {INJECT} for {OPERATOR} to call by sudo; deploy"),
    ],
)
def test_a_wrong_sudo_rule_gives_one_line_and_changes_nothing(host, clean, wrong, says):
    """Exit code 3, what is wrong and how to fix it; the host's log has no new line and its link is up."""
    before = host.audit()
    host.root("cp -a /etc/sudoers.d/c4bench /root/rule")
    try:
        host.root(wrong)
        code, said, complaint = host.fault("apply", "nic.down", "n1/0", "--last-nic")
    finally:
        host.root(f"cp -a /root/rule /etc/sudoers.d/c4bench; [ ! -e {INJECT}.away ] || mv {INJECT}.away {INJECT}")
    assert (code, said) == (3, "")
    assert says in complaint
    assert complaint.count("\n") == 1
    clean(host.audit() == before and "state UP" in host.root("ip link show nic0"), "wrong sudo rule")


def test_a_user_who_may_become_root_can_deploy(host):
    """An administrator who logs in as himself deploys by sudo, and is the operator unless another is named.

    What is as it should be already stays so: the agent runs on.
    """
    running = host.root("pgrep -u c4bench")
    host.root(f"echo '{OPERATOR} ALL = (ALL) NOPASSWD: ALL' > /etc/sudoers.d/all")
    given = {name: value for name, value in host.variables.items() if name != "c4_operators"}
    try:
        found = playbook("deploy", load(host.inventory), hosts=["n1"], variables=given, directory=host.directory)
    finally:
        host.root("rm /etc/sudoers.d/all")
    assert found.hosts["n1"].changed == 0  # all is as root has deployed it for the same operator
    assert host.root("pgrep -u c4bench") == running
    assert host.asked("ls -A /tmp | grep ansible") == (1, "")


def test_a_check_says_all_that_is_wrong(host, play):
    """A whole installation passes; a file that others may write, a missing rule and a stopped agent are each named."""
    host.root(f"chmod o+w {CODE}/errors.py; mv /etc/sudoers.d/c4bench /root/rule")
    assert play("stop") == 1
    with pytest.raises(UnhealthyError) as failed:
        play("check")
    host.root(f"chmod o-w {CODE}/errors.py; mv /root/rule /etc/sudoers.d/c4bench")
    for says in (
        f"users other than root can write to {CODE}/errors.py",
        "no agent runs",
        f"{OPERATOR} may not",
    ):
        assert says in str(failed.value)
    assert [play("start"), play("check")] == [1, 0]


def test_what_a_host_knows_comes_home(host, play):
    """Logs and links arrive as one tarball, NICs as variables for review; the host is as it was."""
    before = host.root("ls -a /tmp /root")
    assert play("collect", c4_collected=str(host.directory / "collected")) == 0
    with tarfile.open(host.directory / "collected/n1.tar.gz") as found:
        assert {"links.txt", "queues.txt"} <= set(found.getnames())
    play("discover")
    written = Document(host.directory / "host_vars/n1/c4bench.yml").data
    assert written == {"c4": {"disruptive": False, "management": "eth0", "nics": []}}
    (host.directory / "host_vars/n1/c4bench.yml").write_text("c4: {}")
    assert play("discover") == 0
    shutil.rmtree(host.directory / "host_vars")
    assert host.root("ls -a /tmp /root") == before


def test_a_full_disk_lets_no_fault_begin_and_keeps_none(host, clean):
    """Without room for its record a fault is refused untouched; one that is in force when the disk fills still ends."""
    fill = "dd if=/dev/zero of=/var/lib/c4bench/filler bs=4k 2>/dev/null; true"
    host.root("mkdir -p /var/lib/c4bench; mount -t tmpfs -o size=256k disk /var/lib/c4bench")
    try:
        host.root(fill)
        code, said, complaint = host.fault("apply", "nic.down", "n1/0", "--last-nic")
        assert (code, said) == (3, "")
        assert "cannot be written: No space left on device; no fault is applied without its record" in complaint
        assert complaint.count("\n") == 1
        assert "state UP" in host.root("ip link show nic0")
        host.root("rm /var/lib/c4bench/filler")
        with host.held("nic.down", "n1/0", "--last-nic", "--lease=4s"):
            host.root(fill)
            assert "state UP" not in host.root("ip link show nic0")
        clean(
            "state UP" in host.root("ip link show nic0") and host.fault("status")[:2] == (0, ""),
            "disk full under a fault",
        )
    finally:
        host.root("umount /var/lib/c4bench")


@pytest.mark.parametrize(
    ("say", "word"),
    [("status", "its host key is not the one in known_hosts"), ("apply", "Host key verification failed")],
)
def test_a_host_with_another_key_is_not_spoken_to(host, say, word):
    """A host that answers with another key than the known one is sent nothing: exit code 3."""
    known = host.directory / "known_hosts"
    right = known.read_text()
    before = host.audit()
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(host.directory / f"other-{say}")], check=True
    )
    other = (host.directory / f"other-{say}.pub").read_text().split()[1]
    address, kind, _ = right.split()
    known.write_text(f"{address} {kind} {other}\n")
    try:
        words = ("nic.down", "n1/0", "--last-nic") if say == "apply" else ()
        code, said, complaint = host.fault(say, *words)
    finally:
        known.write_text(right)
    assert (code, said) == (3, "")
    assert word in complaint
    assert complaint.count("\n") == 1
    assert host.audit() == before
