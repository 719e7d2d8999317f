"""A lab that is killed takes everything with it: nothing of it goes on, on the machine or in it."""

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from c4bench.lab.machine import containment, kernel, modes
from c4bench.lab.machine.modes import Mode

USERS = ("root", "ordinary user", "container")
MOMENTS, AT_NIGHT = 2, 20
LATEST_S = 6.0
ENOUGH_TO_FALL_S = 0.5
GONE_WITHIN_S = 5.0
NOBODY = 65534
# What an ordinary container forbids: new namespaces, and the capabilities that its engine takes away. Its own PID
# namespace is left out here, so that nothing but the reaper can be what ends the lab.
_CONTAINER = """
echo 0 > /proc/sys/user/max_user_namespaces
exec setpriv --bounding-set=-sys_admin,-net_admin,-sys_module,-sys_ptrace,-sys_rawio --no-new-privs "$@"
"""
CONTAINER = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", _CONTAINER, "sh"]


@pytest.fixture(params=USERS)
def user(request):
    """The command prefix that becomes the user the lab is run by."""
    if request.param == "container":
        return CONTAINER
    if request.param == "root":
        if os.getuid():
            pytest.skip("no-root: this drill is run as root too")
        return []
    if os.getuid():
        return []
    return ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]


@pytest.fixture(params=[Mode.SECCOMP, pytest.param(Mode.PTRACE, marks=pytest.mark.nightly)])
def mode(request):
    """How the lab's kernel takes hold of its guests."""
    if why := modes.obstacle(request.param):
        pytest.skip(f"unsupported: {why}")
    return request.param


@pytest.fixture
def workplace():
    """A directory any user can write to, with a copy of the kernel any user can read."""
    with tempfile.TemporaryDirectory(prefix="c4bench-drill-", dir="/tmp") as name:
        place = Path(name)
        built = kernel.require()
        shutil.copytree(built.home, place / "cache" / built.home.name)
        (place / "run").mkdir()
        for path in (place, place / "run"):
            path.chmod(0o777)
        yield place


def test_a_killed_lab_leaves_nothing(user, mode, workplace):
    """SIGKILL of any of a lab's processes, at any moment, leaves no process, mount, or file outside its directory."""
    kill_labs(user, mode, workplace, MOMENTS)


@pytest.mark.nightly
def test_many_killed_labs_leave_nothing(user, mode, workplace):
    """At many moments, too."""
    kill_labs(user, mode, workplace, AT_NIGHT)


def kill_labs(user, mode, workplace, moments):
    """Start so many labs one after the other, and kill each at a random moment, one in each part of the time."""
    if not containment.contained():
        pytest.skip("unsupported: this machine allows no user namespaces")
    chance = random.Random(f"{mode} {user}")
    for moment in range(moments):
        wait_s = LATEST_S * (moment + chance.random()) / moments
        before = outside()
        lab = start_lab(user, mode, workplace, marker := f"/var/tmp/c4bench-loose-{os.getpid()}-{moment}")
        time.sleep(wait_s)
        victim = chance.choice(processes_of(lab, workplace) or [lab.pid])
        where = f"moment {moment}: process {victim} killed after {wait_s:.3f} s"
        kill(victim)
        if not gone(lab, workplace, ENOUGH_TO_FALL_S):
            kill(lab.pid)  # a guest's own process may die without its lab; its harness may not
        try:
            assert gone(lab, workplace, GONE_WITHIN_S), f"{where}: {describe(processes_of(lab, workplace))} went on"
            assert outside() == before, f"{where}: left something"
            assert not Path(marker).exists(), f"{where}: a guest process wrote to the machine"
        finally:
            for pid in processes_of(lab, workplace):
                kill(pid)
            lab.wait()


def test_a_lab_boots_where_a_container_lets_it():
    """Without namespaces or CAP_SYS_ADMIN a lab boots and works; nobody who has not named it a container gets one."""
    command = [*CONTAINER, sys.executable, "-m", "c4bench.cli.main", "lab", "run", "--bare", "--topology=pair"]
    command += ["--", "sh", "-c", "ip netns exec h0 rdma link; ip netns exec h1 rdma link"]
    environment = os.environ | {"C4BENCH_CONTAINER": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("state ACTIVE") == 2
    environment["C4BENCH_CONTAINER"] = ""
    refused = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert refused.returncode == 3
    assert "in a container set C4BENCH_CONTAINER=1" in refused.stderr


@pytest.mark.nightly
def test_a_scenario_passes_where_a_container_lets_it(tmp_path):
    """A fault works without CAP_SYS_ADMIN or new namespaces: a NIC goes down and its events are heard."""
    scenario = "tests/scenarios/verbs/test_endpoints.py::test_port_events_are_heard"
    command = [*CONTAINER, sys.executable, "-m", "pytest", "--hosts=softroce", "--c4-topology=pair", scenario]
    done = subprocess.run(
        [*command, f"--c4-run-dir={tmp_path}", "-p", "no:cacheprovider"],
        cwd=Path(__file__).parents[2],
        env=os.environ | {"C4BENCH_CONTAINER": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    assert "1 passed" in done.stdout


def start_lab(user, mode, workplace, marker):
    """A lab whose command keeps trying to write outside: inside the lab that is the overlay, outside it is the disk."""
    command = f"while :; do mkdir -p {marker}; rmdir {marker}; sleep 0.01; done"
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(workplace / "run"),
        "C4BENCH_CACHE": str(workplace / "cache"),
        "C4BENCH_CONTAINER": str(int(user == CONTAINER)),
        "C4BENCH_LAB_MODE": mode,
    }
    argv = [sys.executable, "-m", "c4bench.cli.main", "lab", "run", "--time=real", "--topology=pair"]
    return subprocess.Popen(
        [*user, *argv, f"--run-dir={workplace / 'run'}", "--", "/bin/sh", "-c", command],
        env=environment,
        cwd=workplace,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def processes_of(lab, workplace):
    """Every live process of the lab: of the session it was started in, or at work in its directory."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            state, _, _, session = (entry / "stat").read_text().rpartition(") ")[2].split()[:4]
            inside = (entry / "cwd").readlink().is_relative_to(workplace)
        except OSError:
            continue
        if state not in "ZX" and (int(session) == lab.pid or inside):
            found.append(int(entry.name))
    return sorted(found)


def describe(pids):
    """Processes as a person would want them in a failure."""
    return [f"{pid} {Path(f'/proc/{pid}/comm').read_text().strip()}" for pid in pids if Path(f"/proc/{pid}").exists()]


def kill(pid):
    """SIGKILL, if it is still there."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def gone(lab, workplace, within_s):
    """Wait until nothing of the lab runs; False when something still does."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        lab.poll()
        if not processes_of(lab, workplace):
            return True
        time.sleep(0.02)
    return False


def outside():
    """What a lab could leave behind on the machine: mounts, and files in the places temporary things go to."""
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    places = ("/dev/shm", "/var/tmp", "/run/netns", "/tmp")
    files = {entry.name for place in places if Path(place).is_dir() for entry in Path(place).iterdir()}
    return sorted(line.split()[4] for line in mounts), sorted(
        name for name in files if "c4bench" in name or "vm_file" in name
    )
