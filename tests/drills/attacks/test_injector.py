"""Attacks on the injector by an operator, by the agent's user and by any other user of a host: each is refused."""

import json
import os
import shlex
import tarfile
import time
from pathlib import Path

import netns_hosts
import pytest
from operator_host import INJECT, OPERATOR, RANK

from c4bench import remote
from c4bench.model.measurement import Clock
from c4bench.record import Ledger
from c4bench.reserve import reservation

REASON = netns_hosts.missing("sudo", "visudo", "runuser")
pytestmark = [
    pytest.mark.skipif(bool(REASON), reason=REASON),
    pytest.mark.attack("an operator, a rank or a stranger against root"),
]
NIC = {"host": "n1", "index": 0, "device": "", "netdev": "nic0", "address": "", "rate_bps": 1e9}
AS_AGENT = "runuser -u c4bench --"
TARGETS = "/etc/c4bench/targets.json"
FILLER = "/var/log/c4bench-fault"
QUICKLY_S = 20.0
# Holds a fault for its lease with all output into a pipe that is full and that nobody reads; says how long the link was
# down, and how long `heal` of somebody else took meanwhile.
UNREAD = """
import fcntl, json, os, subprocess, sys, time
inject, request = sys.argv[1:]
reader, writer = os.pipe()
os.set_blocking(writer, False)
try:
    while os.write(writer, bytes(4096)): pass
except BlockingIOError: os.set_blocking(writer, True)
up = lambda: "nic0" in open("/proc/net/route").read()
begin = time.monotonic()
held = subprocess.Popen(["sudo", "-n", inject, "--log-level=debug", "hold", request],
                        stdin=subprocess.PIPE, stdout=writer, stderr=writer)
while up(): time.sleep(0.01)
down = time.monotonic()
healing = subprocess.Popen(["sudo", "-n", inject, "--log-level=debug", "heal", "no-such-fault"],
                           stdin=subprocess.DEVNULL, stdout=writer, stderr=writer)
subprocess.run(["sudo", "-n", inject, "heal", "other"], capture_output=True)
healed = time.monotonic()
while not up(): time.sleep(0.01)
print(json.dumps({"lasted": time.monotonic() - down, "heal": healed - down}), flush=True)
codes = held.wait(30), healing.wait(30)
"""
# Starts the injector with everything that a caller can leave to its children, then does its worst; says what the
# watchdog has, and how long the link was down.
SPOILT = """
import ctypes, json, os, resource, signal, subprocess, sys, time
inject, request, group = sys.argv[1:]
def spoil():
    if group: open(group + "/cgroup.procs", "w").write("0")
    os.umask(0o777)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP): signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM, signal.SIGTERM})
    open("/proc/self/oom_score_adj", "w").write("1000")
    ctypes.CDLL(None).prctl(29, 3600 * 10**9, 0, 0, 0)
    for kind, soft in ((resource.RLIMIT_NOFILE, 16), (resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_CPU, 60)):
        resource.setrlimit(kind, (soft, resource.getrlimit(kind)[1]))
    os.nice(19)
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
held = subprocess.Popen(["sudo", "-n", inject, "hold", request], preexec_fn=spoil, stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE)
up = lambda: "nic0" in open("/proc/net/route").read()
applied = json.loads(held.stdout.readline())
down = time.monotonic()
if group:
    open(group + "/cgroup.freeze", "w").write("1")
    time.sleep(0.1)
roots = []
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        words = open(f"/proc/{pid}/cmdline").read().split("\\0")
        if "c4bench.inject" not in words or words[0] == "sudo": continue
        status = dict(line.split(":", 1) for line in open(f"/proc/{pid}/status"))
        numbers = open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()
        roots.append({
            "nice": int(numbers[16]), "policy": int(numbers[38]), "oom": int(open(f"/proc/{pid}/oom_score_adj").read()),
            "umask": status["Umask"].strip(), "blocked": int(status["SigBlk"], 16),
            "ignores_children": int(status["SigIgn"], 16) >> 16 & 1,
            "ignores_stops": int(status["SigIgn"], 16) >> 19 & 7,
            "limits": [line.split()[-3] for line in open(f"/proc/{pid}/limits") if line.startswith(("Max file size",
                                                                                                   "Max cpu"))],
            "group": open(f"/proc/{pid}/cgroup").read(),
        })
    except OSError: pass
while not up(): time.sleep(0.01)
lasted = time.monotonic() - down
if group: open(group + "/cgroup.freeze", "w").write("0")
print(json.dumps({"applied": applied, "roots": roots, "lasted": lasted}), flush=True)
"""


@pytest.fixture(scope="module")
def untouched(host):
    """The state of the host before all attacks."""
    return state(host)


@pytest.fixture
def refused(host, untouched, drills, request):
    """Check at the end of an attack that it was refused, and record that the host is as it was before."""

    def judge(how, holds):
        whole = state(host) == untouched
        ledger = Ledger(drills, request.node.nodeid)
        ledger.measure("hosts.clean_after_drill_fraction", float(whole), "1", equals=1, clock=Clock.NONE, how=how)
        assert holds, how
        assert whole, f"{how}: something is left"

    return judge


def state(host):
    """The links, queues and faults of the host."""
    return host.root(f"ip -o link | sort; tc qdisc show; {INJECT} status; ls /var/lib/c4bench/faults 2>/dev/null")


def inject(host, *words):
    """What the operator gets from the injector by sudo: exit code, output, and whether it came soon."""
    began = time.monotonic()
    code, output = host.asked(f"timeout 40 sudo -n {INJECT} {shlex.join(words)} </dev/null")
    return code, output, time.monotonic() - began < QUICKLY_S


def asked(fault, **fields):
    """A request as an operator may write it by hand."""
    return json.dumps({"fault": fault, "host": "n1", "lease_s": 3.0, "witness_s": 0.1} | fields)


def test_a_link_among_the_logs_leads_to_no_secret(host, refused):
    """`collect.yml` brings home only the agent's own regular files, waits for no FIFO, and keeps them private."""
    host.root("echo secret > /root/secret; chmod 600 /root/secret")
    host.root(f"{AS_AGENT} sh -c 'cd /run/c4bench; ln -s /root/secret a.log; mkfifo b.log; echo mine > c.log'")
    began = time.monotonic()
    host.play("collect", c4_collected=str(host.directory / "collected"))
    archive = host.directory / "collected/n1.tar.gz"
    with tarfile.open(archive) as whole:
        texts = [whole.extractfile(name).read() for name in whole.getnames()]
        with tarfile.open(fileobj=whole.extractfile("agent-logs.tar")) as found:
            names = found.getnames()
    host.root("cd /run/c4bench; rm a.log b.log c.log")
    assert "c.log" in names
    holds = not {"a.log", "b.log"} & set(names) and not any(b"secret" in text for text in texts)
    holds = holds and archive.stat().st_mode & 0o777 == 0o600 and time.monotonic() - began < 60
    refused("link and FIFO among the logs", holds and host.root("ls -d /tmp/c4bench-collected* || true") == "")


@pytest.mark.parametrize(
    "netdev",
    [
        "d0\x85netns\x851",
        "eth0",
        *(pytest.param(name, marks=pytest.mark.nightly) for name in ("lo", "-force", "nic0 netns 1")),
    ],
)
def test_a_callers_interface_is_not_believed(host, refused, netdev):
    """The commands name the interface of root's file, whatever name the caller gives to the NIC with that number."""
    code, output, _ = inject(host, "plan", asked("nic.down", nic=NIC | {"netdev": netdev}))
    assert code == 0, output
    refused(f"interface {netdev!r}", json.loads(output)["apply"] == ["ip link set dev nic0 down"])


def test_a_port_cannot_be_several_words(host, refused):
    """A port's name that a tool could take for options is refused."""
    code, output, _ = inject(host, "plan", asked("link.down", port="nic0\x85netns\x851"))
    refused("port of several words", code == 2 and "is not the name of an interface" in output)


@pytest.mark.parametrize("kind", ["fifo", "own"])
def test_a_callers_namespace_is_not_entered(host, refused, kind):
    """A path of the caller's is ignored: a FIFO holds up no lock, and no command runs in the caller's namespace."""
    place = f"/tmp/{kind}"
    host.asked(f"mkfifo {place}" if kind == "fifo" else f"touch {place}; unshare -rn sleep 60 & echo $! > /tmp/pid")
    path = place if kind == "fifo" else f"/proc/{host.asked('cat /tmp/pid')[1].strip()}/ns/net"
    code, output, soon = inject(host, "plan", asked("nic.down", nic=NIC, netns=path))
    held = inject(host, "hold", asked("nic.rate", nic=NIC, netns=path, parameters={"fraction": 0.5}))
    free = inject(host, "heal")
    host.asked("rm -f /tmp/fifo /tmp/own; pkill sleep")
    holds = code == 0 and "nsenter" not in output and soon and held[2] and free[0] == 0 and free[2]
    refused(f"namespace: {kind}", holds)


def test_other_nics_and_hosts_without_leave_are_refused(host, refused):
    """A NIC that is not in root's file is refused, and so is every fault on a host that is not `disruptive` there."""
    other, output, _ = inject(host, "hold", asked("nic.down", nic=NIC | {"index": 1, "netdev": "eth0"}))
    assert "n1 has no NIC 1 in /etc/c4bench/targets.json" in output
    host.root(f"cp -a {TARGETS} /root/targets; sed -i s/true/false/ {TARGETS}")
    codes = [
        inject(host, "hold", asked(name, **rest))[0] for name, rest in (("nic.down", {"nic": NIC}), ("host.crash", {}))
    ]
    host.root(f"mv /root/targets {TARGETS}")
    refused("NIC not in the file, host not disruptive", other == 2 and codes == [2, 2])


def test_a_file_of_targets_that_others_can_write_is_refused(host, refused):
    """The file is believed only while nobody but root can have written it."""
    host.root(f"chmod o+w {TARGETS}")
    code, output, _ = inject(host, "hold", asked("nic.down", nic=NIC))
    host.root(f"chmod o-w {TARGETS}")
    refused("writable targets.json", code == 3 and "is not a file that only root can write" in output)


def test_a_ring_aims_no_fault_at_a_process_of_roots(host, refused):
    """A ring that is a link or a FIFO, or lies in a stranger's folder, aims no fault at another user's process."""
    host.root("sleep 600 >/dev/null 2>&1 & echo $! > /root/pid")
    pid = host.root("cat /root/pid")
    code = RANK.replace("trial", "lure").replace('print("ready", flush=True)\n', "").replace("time.sleep(600)\n", "")
    host.root("mkdir /root/rings; touch /root/rings/0.ring")
    found = []
    with remote.connect("n1", host.access) as connection:
        ring = "/dev/shm/c4bench/lure/0.ring"
        connection.run([*AS_AGENT.split(), "/opt/c4bench/bin/python", "-c", code], timeout_s=60.0)
        for wrong in (f"ln -sf /root/rings/0.ring {ring}", f"rm {ring}; mkfifo {ring}"):
            host.root(f"{AS_AGENT} sh -c {shlex.quote(wrong)}")
            found.append(inject(host, "hold", asked("process.kill", job="lure", rank=0)))
        host.root(f"rm -r /dev/shm/c4bench/lure; {AS_AGENT} ln -s /root/rings /dev/shm/c4bench/lure")
        found.append(inject(host, "hold", asked("process.kill", job="lure", rank=0)))
        host.root("rm /dev/shm/c4bench/lure; mv /dev/shm/c4bench /dev/shm/aside; chmod 1777 /dev/shm")
        host.asked("mkdir -p /dev/shm/c4bench/lure; touch /dev/shm/c4bench/lure/0.ring")
        found.append(inject(host, "hold", asked("process.kill", job="lure", rank=0)))
        host.root("rm -r /dev/shm/c4bench; mv /dev/shm/aside /dev/shm/c4bench")
    alive = host.root(f"kill -0 {pid} && echo alive; kill {pid}; rm -r /root/rings /root/pid") == "alive"
    says = [any(word in output for word in ("regular file", "another user")) for _, output, _ in found]
    assert all(says), found
    refused("rings", alive and all(code == 3 and soon for code, _, soon in found))


def test_controls_that_are_a_fifo_hold_no_lock(host, refused):
    """A rank whose controls are a FIFO is refused at once, and the next fault finds the lock free."""
    with remote.connect("n1", host.access) as connection:
        session = connection.start([*AS_AGENT.split(), "/opt/c4bench/bin/python", "-c", RANK])
        assert session.read_line(30.0) == "ready"
        controls = "/dev/shm/c4bench/trial/0.controls"
        host.root(f"{AS_AGENT} sh -c 'rm {controls}; mkfifo {controls}'")
        fault = inject(host, "hold", asked("process.slow", job="trial", rank=0, parameters={"factor": 2}))
        free = inject(host, "heal")
        host.root("pkill -u c4bench -f recorder; rm -r /dev/shm/c4bench/trial")
        session.close()
    refused("controls are a FIFO", fault[0] == 2 and fault[2] and free[0] == 0 and free[2])


def entry(host, name, boot):
    """The journal's entry of a fault of an earlier boot that has filled the disk, and its file."""
    lease = {"id": name, "request": json.loads(asked("host.disk_full")), "started_s": 1.0, "expires_s": 2.0}
    plan = {
        "claims": ["disk"],
        "apply": [],
        "revert": [{"type": "delete", "path": FILLER}],
        "sudden": 1,
        "rhythm": None,
    }
    whole = {"lease": lease, "kind": "host", "plan": plan, "found": {}, "deadline_s": 0.0, "boot": boot}
    host.root(f"mkdir -p /var/lib/c4bench/faults; echo {shlex.quote(json.dumps(whole))} > {journal(name)}")


def journal(name):
    return f"/var/lib/c4bench/faults/{name}.json"


def test_a_file_that_outlived_a_restart_is_removed(host, refused):
    """`heal`, which a unit runs at boot, deletes the file that fills the disk, and says so only once it is gone."""
    entry(host, "host.disk_full-1-1", "an earlier boot")
    host.root(f"mkdir {FILLER}")  # a folder cannot be deleted as a file
    code, output, _ = inject(host, "heal")
    stuck = f"+ {FILLER}" in output
    host.root(f"rmdir {FILLER}; rm -f /var/lib/c4bench/quarantine.json")
    entry(host, "host.disk_full-1-2", "an earlier boot")
    host.root(f"echo full > {FILLER}")
    code, output, _ = inject(host, "heal")
    gone = host.root(f"ls {FILLER} 2>/dev/null || echo gone") == "gone"
    refused("disk full over a restart", stuck and code == 0 and gone and json.loads(output)["residue"] == [])


def test_a_damaged_file_stops_nobody_else(host, refused):
    """With a damaged entry in the journal, faults begin and end, `status` works, and `heal` names the file."""
    host.root(f"mkdir -p /var/lib/c4bench/faults; echo '{{' > {journal('bad')}; : > {journal('empty')}")
    held = inject(host, "hold", asked("nic.down", nic=NIC))
    status, heal = inject(host, "status"), inject(host, "heal")
    host.root(f"rm {journal('bad')} {journal('empty')}")
    assert held[0] == 0, held
    holds = status[0] == 0 and heal[0] == 3 and "bad.json is damaged" in heal[1] and "empty.json is damaged" in heal[1]
    refused("damaged entries", holds and "Traceback" not in status[1] + heal[1])


def test_an_empty_quarantine_is_a_line(host, refused):
    """A quarantine that cannot be read refuses faults in one line that says what to do."""
    host.root(": > /var/lib/c4bench/quarantine.json")
    held, heal = inject(host, "hold", asked("nic.down", nic=NIC)), inject(host, "heal")
    host.root("rm /var/lib/c4bench/quarantine.json")
    holds = (
        held[0] == heal[0] == 3 and "quarantine.json is damaged" in held[1] and "quarantine.json is damaged" in heal[1]
    )
    refused("empty quarantine", holds and "Traceback" not in held[1] + heal[1])


LEASE_S = 2.0
KEEPER = Path(reservation.__file__).with_name("keeper.py").read_text()
DOWN = {"nic": NIC, "lease_s": LEASE_S, "witness_s": 0.05}


@pytest.mark.attack("output that nobody reads")
def test_a_pipe_that_nobody_reads_holds_neither_lock_nor_lease(host, refused):
    """With stdout and stderr full, at the level debug, the lease ends in time and others' `heal` is answered."""
    found, said = host.as_operator(UNREAD, INJECT, asked("nic.down", **DOWN))
    assert found, said
    refused("output that nobody reads", found["lasted"] < LEASE_S + 1 and found["heal"] < LEASE_S + 1)


def check_roots(found):
    """Whether injector and watchdog have nothing of their caller's."""
    wanted = {"nice": 0, "policy": 0, "oom": 0, "umask": "0022", "blocked": 0, "ignores_children": 0}
    return len(found["roots"]) >= 2 and all(
        {name: root[name] for name in wanted} == wanted and set(root["limits"]) == {"unlimited"}
        for root in found["roots"]
    )


@pytest.mark.attack("what a caller leaves to the watchdog")
@pytest.mark.parametrize("frozen", [True, False])
def test_injector_and_watchdog_have_nothing_of_their_callers(host, refused, frozen):
    """Priority, class, limits, signals, mask and group are root's: the lease ends in time, also in a frozen group."""
    top = f"/run/cgroup/c4bench-drill-{os.getpid()}"
    group, prepare = (f"{top}/inside", f"echo $$ > {top}/cgroup.procs;") if frozen else ("", "")
    if frozen:
        host.root("mkdir -p /run/cgroup && mount -t cgroup2 none /run/cgroup")
        host.root(f"mkdir -p {group} && chown -R {OPERATOR} {top}")
    try:
        found, said = host.as_operator(SPOILT, INJECT, asked("nic.down", **DOWN), group, before=prepare)
    finally:
        if frozen:
            host.root(f"echo 0 > {group}/cgroup.freeze; sleep 0.3; rmdir {group} {top}; umount /run/cgroup")
    assert found, said
    assert all(root["ignores_stops"] == 7 for root in found["roots"])
    holds = check_roots(found) and found["applied"]["witness"]["seen"] and found["lasted"] < LEASE_S + 1
    refused(
        f"spoilt start, frozen: {frozen}",
        holds and not any("c4bench-drill" in root["group"] for root in found["roots"]),
    )


@pytest.mark.attack("variant: a limit that only few may raise")
def test_a_limit_of_the_callers_ends_no_watchdog(host, refused):
    """A hard limit of processor time is raised, or the fault is refused before anything is changed."""
    request = shlex.quote(asked("nic.down", **DOWN))
    code, output = host.asked(f"ulimit -t 60; sudo -n {INJECT} hold {request} </dev/null")
    holds = code == 0 or (code == 3 and "RLIMIT_CPU to 60, and root cannot raise it here" in output)
    refused("processor time", holds)


@pytest.mark.attack("any interface, where nothing is deployed")
@pytest.mark.parametrize("setting", ["", "SUDO_UID=0", pytest.param("PKEXEC_UID=0", marks=pytest.mark.nightly)])
def test_an_operator_is_never_root_itself(host, refused, setting):
    """Without root's file of targets an operator may name no interface, and cannot say that it is root."""
    host.root(f"mv {TARGETS} /root/targets")
    request = shlex.quote(asked("nic.down", nic=NIC | {"netdev": "eth0"}))
    code, output = host.asked(f"sudo -n {setting} {INJECT} hold {request} </dev/null")
    host.root(f"mv /root/targets {TARGETS}")
    says = "not allowed to set" in output if setting else f"there is no {TARGETS}; deploy" in output
    refused(f"no targets, {setting}", code != 0 and says and "Traceback" not in output)


@pytest.mark.attack("locks of root's and of the agent's")
def test_a_stranger_can_lock_nothing_of_ours(host, refused):
    """Neither the agent's pid file nor a reservation can be opened by others; a file in /dev/shm holds nobody."""
    host.asked("echo > /dev/shm/c4bench.reservation; flock -n /dev/shm/c4bench.reservation sleep 20 >/dev/null 2>&1 &")
    claim = '{"id": "%s", "user": "u", "command": "c", "ttl_s": 5}'
    reserve = f"sudo -n {INJECT} reserve"
    keeper = shlex.join([*remote.BARE_PYTHON, KEEPER, json.dumps(json.loads(claim % "a") | {"inject": INJECT})])
    host.asked(f"(sleep 3 | {keeper} >/tmp/first 2>&1) >/dev/null 2>&1 & sleep 1")
    other = host.asked(f"{reserve} '{claim % 'b'}' </dev/null")[1]
    files = host.root("find /run/c4bench-reservation /run/c4bench/agent.pid -type f").split()
    tried = [host.asked(f"flock -n {file} true")[0] for file in files]
    first = host.root("cat /tmp/first; rm /tmp/first /dev/shm/c4bench.reservation")
    wrong = host.asked(f'{reserve} \'{{"id": "{"x" * 100}", "ttl_s": 1e300}}\' </dev/null')
    holds = json.loads(first) == {"held": True} and json.loads(other)["held"] is False
    holds = holds and len(files) == 2 and all(tried) and wrong[0] == 2 and "the claim is not one" in wrong[1]
    host.root("rm -r /run/c4bench-reservation")
    refused("locks", holds)
