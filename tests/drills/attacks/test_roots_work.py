"""Attacks on what the injector does as root with files, numbers and texts of others; each with the real parts."""

import contextlib
import json
import os
import pwd
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec
import pytest

from c4bench.collective.recorder import Recorder
from c4bench.errors import UnhealthyError, UsageError
from c4bench.inject import actions, caller, files, processes
from c4bench.inject.actions import Join, SetKnob, Signal
from c4bench.live.feed import FaultHistory
from c4bench.model.agent import AgentConfig
from c4bench.model.fault import FaultRequest
from c4bench.model.reservation import Claim
from c4bench.reserve import Reservation, reservation
from c4bench.workload.controls import Controls

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
NOBODY = pwd.getpwnam("nobody").pw_uid
# Cuts its files and restores them, as fast as it can.
CUTTER = """
import os, sys
files = [(os.open(path, os.O_RDWR), open(path, "rb").read()) for path in sys.argv[1:]]
print(flush=True)
while True:
    for descriptor, content in files:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, content, 0)
"""
# Names one of its threads as the process that writes its telemetry.
THREAD = """
import os, sys, threading, time
from pathlib import Path
from c4bench.collective.recorder import Recorder
thread = threading.Thread(target=time.sleep, args=(60,), daemon=True)
thread.start()
os.getpid = lambda: thread.native_id
Recorder(Path(sys.argv[1]), "train", 2)
print(thread.native_id, flush=True)
time.sleep(60)
"""
READS_FOR_S = 1.0


@pytest.fixture
def places(tmp_path, monkeypatch):
    """The folder of the telemetry files of one rank of a job."""
    (tmp_path / "agent.yml").write_text(f"{{name: h5, master: m, trust: t, rings: {tmp_path}}}")
    monkeypatch.setattr(processes, "configuration", lambda: tmp_path)
    places = AgentConfig("h5", "m", "t", rings=str(tmp_path))
    places.ring("train", 2).parent.mkdir()
    return places


@contextlib.contextmanager
def running(script, *arguments):
    """A Python process that has said one line."""
    process = subprocess.Popen([sys.executable, "-c", script, *map(str, arguments)], stdout=subprocess.PIPE, text=True)
    try:
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.attack("files that are cut while root reads them")
def test_a_file_that_is_cut_kills_nobody(places):
    """A rank that cuts and restores its controls and its telemetry all the time gets a refusal, never root's death."""
    Controls.create(places.controls("train", 2))
    Recorder(places.ring("train", 2), "train", 2)
    reader = (
        "import sys, time; from pathlib import Path; from c4bench.errors import C4Error\n"
        "from c4bench.inject import processes; from c4bench.inject.actions import SetKnob\n"
        "from c4bench.model.fault import FaultRequest\n"
        "processes.configuration = lambda: Path(sys.argv[1])\n"
        "request, refused, until = FaultRequest('process.slow', 'h5', job='train', rank=2), 0, time.monotonic() + 1.0\n"
        "while time.monotonic() < until:\n"
        "    for act in (lambda: processes.find(request), lambda: processes.telemetry(Path(sys.argv[2])),\n"
        "                SetKnob(sys.argv[3], 'compute_factor', 2.0).perform):\n"
        "        try: act()\n"
        "        except C4Error: refused += 1\n"
        "print(refused)"
    )
    paths = (places.ring("train", 2), places.controls("train", 2))
    with running(CUTTER, *paths):
        argv = [sys.executable, "-c", reader, str(Path(places.rings)), *map(str, paths)]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) > 0


@pytest.mark.attack("variant: a factor that is no number")
def test_a_factor_that_is_no_number_leaves_no_fault_that_cannot_be_reverted(places, tmp_path):
    """NaN in a rank's controls would make an entry of the journal that nobody can read: it is refused before."""
    with running(THREAD.replace("os.getpid = lambda: thread.native_id", ""), places.ring("train", 2)):
        Controls.create(places.controls("train", 2)).set("compute_factor", float("nan"))
        target = processes.find(FaultRequest("process.slow", "h5", job="train", rank=2))
        with pytest.raises(UsageError, match="compute_factor is nan, which nobody sets; start the job again"):
            processes.compute_factor(target)
    assert list(tmp_path.glob("state/**/*.json")) == []


@pytest.mark.attack("variant: a file system of the caller's own")
def test_a_file_system_below_the_rings_is_not_entered(places):
    """A job's folder that is a mount, whose owner could let every look into it wait, is refused without a look."""
    job = places.ring("train", 2).parent
    subprocess.run(["mount", "-t", "tmpfs", "none", job], check=True)
    try:
        with pytest.raises(UnhealthyError, match="train is a file system of its own; unmount it"):
            processes.find(FaultRequest("process.kill", "h5", job="train", rank=2))
        with pytest.raises(UnhealthyError, match="file system of its own"):
            files.names_below(job.parent, job, {0})
    finally:
        subprocess.run(["umount", job], check=True)


@pytest.mark.attack("the number of a thread in a ring")
def test_the_number_of_a_thread_is_refused_and_skips_no_revert(places):
    """A ring that names a thread is refused in a line; an action on one is an error, and the next is done."""
    Controls.create(places.controls("train", 2)).set("compute_factor", 3.0)
    with running(THREAD, places.ring("train", 2)) as (process, thread):
        with pytest.raises(UnhealthyError, match=rf"names process {thread}: {thread} is a thread; stop job train"):
            processes.find(FaultRequest("process.kill", "h5", job="train", rank=2))
        aimed = Signal(int(thread), processes.started_ticks(int(thread)), 0, signal.SIGCONT)
        undone = SetKnob(str(places.controls("train", 2)), "compute_factor", 1.0)
        assert [actions.attempt(action) for action in (aimed, undone)] == [f"{thread} is a thread", ""]
        assert process.poll() is None
    assert Controls.open(places.controls("train", 2)).read("compute_factor") == 1.0


@pytest.mark.attack("variant: numbers that are no process")
@pytest.mark.parametrize("number", [-1, 0, 1 << 40, 1 << 63])
def test_a_number_that_no_process_can_have_is_a_line(number):
    """Whatever number a ring states, acting on it is one error of ours."""
    assert actions.attempt(Signal(number, 1, 0, signal.SIGKILL)) == f"process {number} has ended"


@pytest.mark.attack("variant: a process whose name is no text")
def test_a_process_may_have_any_name():
    """A name of bytes that are no UTF-8, with a bracket and a space, hides neither its state nor its start."""
    renamed = (
        "import ctypes; ctypes.CDLL(None).prctl(15, b'\\xff) Z 1'); import time; print(flush=True); time.sleep(60)"
    )
    with running(renamed) as (process, _):
        assert processes.state(process.pid) in "RS"
        assert processes.started_ticks(process.pid) > 0


@pytest.fixture
def group():
    """A control group of root's own, in a hierarchy of version 2."""
    top = caller._hierarchies().get("")
    if top is None:
        pytest.skip("no cgroup of version 2 is mounted")
    made = top / f"c4bench-drill-{os.getpid()}"
    made.mkdir()
    yield made
    until_s = time.monotonic() + 5
    while (made / "cgroup.procs").read_text() and time.monotonic() < until_s:
        time.sleep(0.01)
    made.rmdir()


def members(group):
    return (group / "cgroup.procs").read_text().split()


@pytest.mark.attack("the memory fault of a process that has another's number")
def test_only_the_process_that_was_found_is_moved(group):
    """A process of that number which began later, or is another user's, stays; the one that was found moves."""
    with running("import time; print(flush=True); time.sleep(60)") as (process, _):
        pid, ticks = process.pid, processes.started_ticks(process.pid)
        refusals = [actions.attempt(Join(pid, *wrong, str(group))) for wrong in ((ticks + 1, 0), (ticks, NOBODY))]
        assert refusals == [f"process {pid} has ended", f"process {pid} is another user's"]
        assert members(group) == []
        assert actions.attempt(Join(pid, ticks, 0, str(group))) == ""
        assert members(group) == [str(pid)]


@pytest.mark.attack("a fault history that is nested deeply")
@pytest.mark.parametrize("line", [b"[" * 200_000, b'{"a":' * 200_000, b"\xff\xfe", b"1" * 5000, b"x" * (3 << 20)])
def test_a_line_that_is_none_of_a_history_hides_no_other(tmp_path, line):
    """Deep, huge and garbled lines are skipped, and a fault that stands after them is read."""
    fault = {"time_s": 1.0, "kind": "fault_applied", "fault": "nic.down", "target": "h5/0"}
    (tmp_path / "faults.jsonl").write_bytes(line + b"\n" + json.dumps(fault).encode() + b"\n")
    history = FaultHistory(tmp_path / "faults.jsonl")
    found = [entry for _ in range(8) for entry in history.poll()]
    assert [entry.subject for entry in found] == ["h5/0"]


class Host:
    """A host whose keeper says one line."""

    def __init__(self, line):
        self.line = line

    def start(self, _):
        return self

    def read_line(self, _):
        return self.line

    def close(self):
        pass


@pytest.mark.attack("what a reservation says of its holder")
@pytest.mark.parametrize(
    ("by", "says"),
    [
        ({"user": "\x1b]0;owned\x07\x1b[2J", "command": "a\nb"}, "is reserved by \\x1b]0;owned\\x07\\x1b[2J since"),
        ({"since_s": 1e300}, "its keeper sent"),
        ({"since_s": -1e18}, "its keeper sent"),
        ({"ttl_s": 1e300}, "its keeper sent"),
        ({"user": "x" * 10_000}, "its keeper sent"),
    ],
)
def test_a_holder_writes_nothing_to_the_terminal_of_another(by, says):
    """Control characters are shown as their escapes; a time of no year and an endless name are refused in one line."""
    access = type("Access", (), {"python": "/opt/c4bench/bin/python"})
    inventory = type("Inventory", (), {"access": {"n1": access}})
    with pytest.raises(UnhealthyError) as refusal:
        Reservation(inventory, ["n1"], "x", ttl_s=5, reach=lambda *_: Host(json.dumps({"held": False, "by": by})))
    said = str(refusal.value)
    assert says in said
    assert said.isprintable()
    assert len(said) < 1000


@pytest.mark.attack("variant: a folder that somebody else has made first")
def test_a_folder_of_a_strangers_is_not_used(tmp_path):
    """The keeper refuses a folder that others can change, and a link in a file's place, in a line."""
    keeper = Path(reservation.__file__).with_name("keeper.py").read_text()
    claim = msgspec.json.encode(Claim("a", "u", "c", 1.0)).decode()
    folder = tmp_path / "reservation"
    text = keeper.replace('"/run/c4bench-reservation"', repr(str(folder)))

    def answer():
        argv = [sys.executable, "-I", "-S", "-u", "-c", text, claim]
        return json.loads(subprocess.run(argv, capture_output=True, check=True, input=b"").stdout.splitlines()[0])

    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    assert "is not a folder that only its owner can change; remove it" in answer()["error"]
    os.chown(folder, NOBODY, -1)
    folder.chmod(0o700)
    assert "is not a folder that only its owner can change" in answer()["error"]
    os.chown(folder, 0, -1)
    (folder / f"{os.uname().nodename}.lock").symlink_to(tmp_path / "victim")
    assert "error" in answer()
    assert not (tmp_path / "victim").exists()


@pytest.mark.attack("49.16 variant: a sudo that does not answer")
@pytest.mark.parametrize("says", ["", "[WARN]", "[]", '{"held": 1}', "[" * 5000])
def test_a_sudo_that_does_not_answer_holds_no_host(says):
    """An operator's keeper whose sudo ends, or says anything else than whether the host is held, holds none."""
    keeper = Path(reservation.__file__).with_name("keeper.py").read_text()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        for tool in ("sudo", "inject"):
            (folder / tool).write_text(f"#!/bin/sh\n[ \"$2\" = -l ] || echo '{says}'\n")
            (folder / tool).chmod(0o755)
        claim = json.dumps({"id": "a", "user": "u", "command": "c", "ttl_s": 1.0, "inject": str(folder / "inject")})
        argv = ["/usr/bin/python3", "-I", "-S", "-u", "-c", keeper, claim]
        path = {"PATH": f"{folder}:/usr/bin:/bin"}
        done = subprocess.run(argv, user=NOBODY, env=path, cwd="/", capture_output=True, check=True, input=b"")
    answer = json.loads(done.stdout)
    assert answer["held"] is False
    assert "does not answer; run it there to see why" in answer["error"]
