"""The embedded lab from outside: exit codes, every topology, and a lab that hangs."""

import os
import re
import resource
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

from c4bench.errors import UnhealthyError
from c4bench.lab.machine import modes, programs, run
from c4bench.lab.machine.launch import launch
from c4bench.lab.topology_file import load, names

REPOSITORY = Path(__file__).parents[2]


LAB = (sys.executable, "-m", "c4bench.cli.main", "lab", "run", "--bare")


def lab(*arguments, **rest):
    """`c4bench lab run` with bare hosts."""
    return subprocess.run([*LAB, *arguments], capture_output=True, text=True, check=False, **rest)


@pytest.fixture(scope="module")
def visit(tmp_path_factory):
    """A lab whose command writes into its run directory and beside it, says something, and fails; and where it was."""
    place = tmp_path_factory.mktemp("visit")
    inside, outside = place / "run", place / "elsewhere"
    outside.mkdir()
    said = "seq 20000; cat /proc/interrupts; echo complained >&2; exit 7"
    command = f"touch {inside / 'kept'} {outside / 'lost'}; {said}"
    return lab("--topology=pair", f"--run-dir={inside}", "--", "sh", "-c", command), place


def test_output_and_exit_code_come_home(visit):
    """What the command says and how it ends are what `lab run` says and how it ends; nothing else is said."""
    done, _ = visit
    *said, complained = done.stdout.splitlines()
    assert (done.returncode, done.stderr, complained) == (7, "", "complained")
    assert said[:20000] == [str(number) for number in range(1, 20001)]


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["sh", "-c", "kill -SEGV $$"], 139),
        pytest.param(["no-such-command"], 127, marks=pytest.mark.nightly),
    ],
)
def test_a_command_that_does_not_exit_has_a_shells_code(command, code):
    """One that a signal ends, or that cannot be started, gives `lab run` the exit code that it gives a shell."""
    assert lab("--topology=pair", "--", *command).returncode == code


def test_nothing_outside_interrupts_a_lab(visit):
    """Only the end of a lab's own processes interrupts it; the reader of its output, at random times, would."""
    done, _ = visit
    counts = {words[-1]: int(words[1]) for words in map(str.split, done.stdout.splitlines()[20001:-1]) if words}
    assert counts.pop("SIGCHLD") > 0
    assert set(counts.values()) <= {0}, counts


def test_only_the_run_directory_can_be_written(visit):
    """A file written to the run directory is on the machine; one written anywhere else is not."""
    _, place = visit
    assert (place / "run/kept").exists()
    assert not (place / "elsewhere/lost").exists()


# Gives a lab a machine of its own, with state of c4bench that is there before it, and state that comes while it runs.
MACHINE = """
set -eu
mount -t tmpfs layers "$layers"
mount -t tmpfs shm /dev/shm
for folder in /etc /opt /var/lib; do
  mkdir -p "$layers$folder/upper" "$layers$folder/work"
  mount -t overlay overlay -o "lowerdir=$folder,upperdir=$layers$folder/upper,workdir=$layers$folder/work" $folder
done
make() { for path; do mkdir -p $path; touch $path/of_the_machine; done; }
make $before
( until [ -e "$run/up" ]; do sleep 0.1; done; make $during; rm -r $before; touch "$run/made" ) &
"$@"
"""
LOOK = """
ls $before $during >/dev/null 2>&1
touch "$run/up"; until [ -e "$run/made" ]; do sleep 0.1; done
look="ls -d $(printf '%s/of_the_machine ' $before $during) 2>/dev/null"
host=$(awk '{print $1; exit}' /run/c4/ssh/known_hosts)
sh -c "$look"
ssh -F none -i /run/c4/ssh/id -o UserKnownHostsFile=/run/c4/ssh/known_hosts root@$host \
  "$look; mkdir -p /var/lib/c4bench/faults /opt/c4bench; ls /etc/c4bench"
"""


@pytest.mark.skipif(os.getuid() != 0, reason="needs root: it mounts file systems")
def test_a_lab_sees_no_state_of_the_machines_own_c4bench(tmp_path):
    """What c4bench has on the machine before a lab, or gets while one runs, is seen neither in it nor on its hosts."""
    before = ("/var/lib/c4bench", "/etc/c4bench")
    during = ("/opt/c4bench", "/etc/sudoers.d/c4bench", "/etc/systemd/system/c4bench.service", "/dev/shm/c4bench")
    places = {name: tmp_path / name for name in ("run", "layers")}
    for path in places.values():
        path.mkdir()
    given = {"before": " ".join(before), "during": " ".join(during)} | places
    exports = "".join(f"export {name}={shlex.quote(str(value))}\n" for name, value in given.items())
    looking = [*LAB, "--topology=pair", f"--run-dir={places['run']}", "--", "bash", "-c", exports + LOOK]
    command = ["unshare", "--mount", "bash", "-c", exports + MACHINE, "bash", *looking]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "targets.json\n"), done.stderr


def test_a_process_with_too_many_memory_maps_is_reported():
    """Shared memory is in a piece for each page that was touched apart from others, other memory in one for 16."""
    most = int(Path("/proc/sys/vm/max_map_count").read_text())
    if most > 200_000:
        pytest.skip(f"unsupported: this machine allows {most} pieces, which take too long")
    pages = most + 5000
    code = f"""
import mmap, random
order = list(range({pages}))
random.Random(1).shuffle(order)
for kind in mmap.MAP_PRIVATE, mmap.MAP_SHARED:
    memory = mmap.mmap(-1, {pages} * 4096, kind | mmap.MAP_ANONYMOUS)
    for page in order: memory[page * 4096] = 1
    memory.close()
    print("touched", flush=True)
"""
    done = lab("--topology=pair", "--", sys.executable, "-c", code)
    assert (done.returncode, done.stdout) == (3, "touched\n")
    assert done.stderr.count("\n") == 1
    assert f"more pieces than the {most} that this machine allows; run less in one lab" in done.stderr


@pytest.mark.parametrize("most", [pytest.param(256, marks=pytest.mark.nightly), 1000])
def test_too_few_open_files_are_refused(most, tmp_path):
    """A machine that allows too few open files refuses the lab at once, in one line, and makes no run directory."""
    (tmp_path / "pytest.ini").write_text("[pytest]\nc4_fixtures = true\n")
    (tmp_path / "test_it.py").write_text("def test_hosts(rdma_hosts): pass\n")
    command = f"ulimit -n {most}; exec {sys.executable} -m pytest --hosts=softroce"
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stdout
    assert f"this machine allows {most} open files, and a lab of 8 hosts needs 2560" in done.stderr
    assert not (tmp_path / "reports").exists()
    few = {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))}
    done = lab("--topology=pair", "--", "true", **few)
    assert done.returncode == 3
    assert done.stderr.count("\n") == 1


def test_a_first_program_that_fails_ends_the_lab(tmp_path, monkeypatch):
    """A lab whose first program fails ends with what that said, long before a standstill would be noticed."""
    monkeypatch.setattr(run, "_START_S", 3.0)
    monkeypatch.setattr(run, "_write_init", failing_init)
    began = time.monotonic()
    with pytest.raises(UnhealthyError, match="the lab's first program failed: no such module"):
        launch(load("pair"), ["true"], tmp_path, seed=1)
    assert time.monotonic() - began < 30


def failing_init(home):
    """Write a first program that prints an error and exits."""
    (home / "init").write_text("#!/bin/sh\necho no such module >&2; exit 7\n")
    (home / "init").chmod(0o755)


# Three tiers, NICs with ports in two planes. `make night` boots every topology.
EACH_TIME = {"fat-tree-2x2", "dual-plane"}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in EACH_TIME else pytest.mark.nightly) for name in names()],
)
def test_every_topology_comes_up(name):
    """Every NIC of every named fabric is an active RDMA device with the large MTU."""
    hosts = load(name).hosts
    looks = [f"ip netns exec {host.name} rdma link" for host in hosts]
    done = lab(f"--topology={name}", "--", "sh", "-c", "\n".join(looks))
    assert done.returncode == 0, done.stderr
    links = re.findall(r"^link (\S+)/1 state ACTIVE physical_state LINK_UP netdev (\S+)", done.stdout, re.MULTILINE)
    assert links == [(nic.device, nic.netdev) for host in hosts for nic in host.nics]


DEAD_LEG = """
look() { ip -n leaf0 route show 10.1.0.0/16 | grep -c 172.16.0.2; }
look
ip -n leaf1 link set up0 down; sleep 0.19; look; sleep 0.03; look
ip -n leaf1 link set up0 up; sleep 0.19; look; sleep 0.03; look
"""


def test_a_dead_leg_far_away_is_withdrawn_as_late_as_the_topology_says():
    """A leaf goes on sending into a spine whose other leg has died for `withdraw_s`, 0.2 s, and no longer."""
    topology = str(Path(__file__).with_name("four.yml"))
    assert load(topology).withdraw_s == 0.2
    done = lab(f"--topology={topology}", "--", "bash", "-c", DEAD_LEG)
    assert done.stdout.split() == ["1", "1", "0", "0", "1"]


# Prints for how many milliseconds a leaf's route still leads by the first spine, or does not yet again.
BGP_LEG = """
by_spine() { ip -n leaf0 route show 10.1.0.0/16 | grep -c '172.16.0.2 '; }
until_it_is() {
  began=$(date +%s%N)
  while [ "$(by_spine)" != "$1" ]; do sleep 0.02; done
  echo $((($(date +%s%N) - began) / 1000000))
}
by_spine
ip -n leaf1 link set up0 down; until_it_is 0
ip -n leaf1 link set up0 up; until_it_is 1
tc -n leaf1 qdisc replace dev up0 root netem loss 100%; until_it_is 0
"""


@pytest.mark.nightly
def test_daemons_withdraw_a_dead_leg_by_bgp_and_a_silent_one_by_bfd():
    """FRR routes around a link far away at once when it is down, and after three lost BFD packets when it is silent."""
    if why := programs.obstacle(load("clos-2x4-bgp")):
        pytest.skip(f"unsupported: {why}")
    done = lab("--topology=clos-2x4-bgp", "--", "bash", "-c", BGP_LEG)
    assert done.returncode == 0, done.stderr
    first, down_ms, up_ms, silent_ms = map(int, done.stdout.split())
    assert first == 1
    assert down_ms <= 200
    assert up_ms <= 3000
    assert 600 <= silent_ms <= 1100


def test_a_lab_that_stands_still_is_ended_and_says_why(tmp_path, monkeypatch, caplog):
    """A process that spins without reading the clock stops virtual time; the watchdog names it, also before the end."""
    monkeypatch.setattr(run, "_STALL_S", 4.0)
    monkeypatch.setattr(run, "_NAMED_S", 2.0)
    spin = ["/usr/bin/python3", "-c", "while True: pass"]
    with pytest.raises(UnhealthyError, match=r"stood still at [\d.]+ virtual s for 4 s; what") as ended:
        launch(load("pair"), spin, tmp_path, seed=1, agents=False)
    doing = [line.split(" (kernel log")[0].split() for line in str(ended.value).splitlines()[1:]]
    assert [name for _, name, *rest in doing if rest == ["running"]] == ["python3"], str(ended.value)
    assert any(name == "sshd" and "poll" in " ".join(rest) for _, name, *rest in doing), str(ended.value)
    place = r"python3 computes at the program itself\+0x"
    if modes.lab_mode() is modes.Mode.SECCOMP:
        assert [record.levelname for record in caplog.records if re.search(place, record.message)] == ["WARNING"]
        assert re.search(place, str(ended.value))


def test_a_nice_lab_gives_way():
    """All of a lab is as nice as its command, also where Linux shares processors among sessions."""
    if not Path("/proc/self/autogroup").exists():
        pytest.skip("unsupported: this machine's Linux does not share processors among sessions")
    command = [
        *("nice", "-n", "7", sys.executable, "-m", "c4bench.cli.main", "lab", "run", "--bare", "--topology=pair")
    ]
    with subprocess.Popen([*command, "--", "cat"], stdin=subprocess.PIPE) as running:
        try:
            while "nice 7\n" not in (shown := [*map(weight, sessions_of(running.pid))]):
                assert running.poll() is None, shown
                time.sleep(0.2)
        finally:
            running.terminate()


def sessions_of(pid):
    """The processes that a process has started, and theirs, that begin sessions."""
    children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [pid for child in children for pid in ([child] if os.getsid(child) == child else sessions_of(child))]


def weight(pid):
    """How a process's session is weighed."""
    return Path(f"/proc/{pid}/autogroup").read_text().partition(" ")[2]


def test_a_lab_that_takes_too_long_is_ended(tmp_path):
    """The limit on the machine's clock holds for a lab that is merely busy or asleep."""
    with pytest.raises(UnhealthyError, match=r"limit of 0\.00138889 h"):
        launch(load("pair"), ["sleep", "1000000000"], tmp_path, seed=1, agents=False, limit_s=5.0)


@pytest.mark.nightly
def test_fault_drivers_hold_on_real_interfaces():
    """The injector's own tests on real network devices, in a kernel that has every queueing discipline they need.

    By day the scenarios of faults bring each one about in such a kernel.
    """
    tests = str(REPOSITORY / "tests/unit/inject/test_fault_netdev.py")
    done = lab(
        "--topology=pair", "--", sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", tests, cwd=REPOSITORY
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert "skipped" not in done.stdout
