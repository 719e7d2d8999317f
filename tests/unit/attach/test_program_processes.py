"""Programs on hosts: here this machine, under several names."""

import signal
import time
from pathlib import Path

import pytest

from c4bench.attach.programs import MARK
from c4bench.attach.site import Site, gid_index
from c4bench.errors import UnhealthyError, UsageError
from c4bench.inventory import Access
from c4bench.model.fabric import Host, Nic

SERVES = "import socket; s = socket.create_server(('', 0)); s.accept()"
HOSTS = [
    Host(name, f"127.0.0.{number}", (Nic(name, 0, f"mlx5_{number}", "eth0", f"10.0.0.{number}", 1e11),))
    for number, name in enumerate(("h1", "h2", "h3"), start=1)
]


@pytest.fixture
def program(tmp_path):
    access = {host.name: Access(host.address, connection="local") for host in HOSTS}
    with Site(access, "test-it", tmp_path / "programs") as site:
        yield site


def running(mark):
    """The processes that have a program's mark."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.append(folder.name)
        except OSError:
            continue
    return found


def test_a_command_runs_once_on_each_host(program):
    """Ranks in the order of hosts, known to c4bench and to torch; status and output of each."""
    text = 'echo "$C4BENCH_JOB $C4BENCH_RANK/$C4BENCH_WORLD_SIZE $RANK/$WORLD_SIZE $MASTER_ADDR {device} {address} $X"'
    started = program(["sh", "-c", f"{text}; exit $RANK"], hosts=HOSTS, attach=False, environment={"X": "y"})
    assert started.wait(30.0, check=False) == 1
    assert [process.code for process in started.processes] == [0, 1, 2]
    assert [process.output() for process in started.processes] == [
        f"test-it-0 {rank}/3 {rank}/3 127.0.0.1 mlx5_{rank + 1} 10.0.0.{rank + 1} y\n" for rank in range(3)
    ]


def test_the_duration_is_the_commands_own(program):
    """From its start to its end, not until somebody asked."""
    started = program("sleep 0.3", hosts=HOSTS[:1], attach=False)
    time.sleep(0.6)
    assert started.wait(30.0) == 0
    process = started.processes[0]
    assert 0.3 <= started.duration_s < 0.59
    assert started.duration_s == process.ended_s - process.began_s


def test_it_is_polled_and_its_output_read_while_it_runs(program):
    """Neither waits for its end."""
    started = program(["sh", "-c", "echo half; sleep 600"], hosts=HOSTS[:1], attach=False)
    while not started.output:
        time.sleep(0.01)
    assert (started.poll(), started.output) == (None, "half\n")
    with pytest.raises(UnhealthyError, match=r"h1: `sh -c .*` did not end within 0.1 s: half"):
        started.wait(0.1)
    started.signal(signal.SIGTERM)
    assert started.wait(30.0, check=False) == 128 + signal.SIGTERM


def test_a_failure_is_named_with_its_last_words(program):
    """Host, command, status and the last line."""
    started = program(["sh", "-c", "echo one; echo out of luck >&2; exit 7"], hosts=HOSTS[1:2], attach=False)
    with pytest.raises(UnhealthyError, match=r"h2: `sh -c .*` failed with code 7: out of luck"):
        started.wait(30.0)
    with pytest.raises(UnhealthyError, match="printed no figure"):
        _ = started.figure
    with pytest.raises(UnhealthyError, match=r"h1: .*no-such-program"):
        program("no-such-program", hosts=HOSTS[:1], attach=False)


def test_a_client_starts_once_its_server_listens(program):
    """The client gets the server's address, and both get their own NIC; the client's figure is the program's."""
    server = ["python3", "-c", f"import time; time.sleep(0.2); {SERVES}"]
    client = ["echo", "{server} {server_address} {device}"]
    started = program(client, server=server, hosts=HOSTS[:2], attach=False)
    assert started.processes[0].listens()
    began_s = time.monotonic()
    assert started.wait(30.0) == 0  # the server still waits for a connection
    assert time.monotonic() - began_s < 20.0
    assert started.duration_s < 2.0
    assert started.processes[0].wait(30.0) == 128 + signal.SIGTERM
    assert started.output == "127.0.0.1 10.0.0.1 mlx5_2\n"


@pytest.mark.parametrize("server", ["false", "sleep 600"])
def test_a_server_that_does_not_serve_is_an_error(program, server):
    """One that ends at once, and one that never listens; nothing of it is left."""
    with pytest.raises(UnhealthyError, match=r"before it listened|does not listen after 0.2 s"):
        program("true", server=server, hosts=HOSTS[:2], attach=False, within_s=0.2)


def test_all_that_a_program_has_started_ends_with_it(program):
    """Also what has left its session and its parent."""
    script = "setsid sh -c 'trap : TERM; while true; do sleep 600; done' & sleep 600"
    started = program(["sh", "-c", script], hosts=HOSTS[:2], attach=False)
    while len(running(started.mark)) < 8:
        time.sleep(0.02)
    program.close()
    assert running(started.mark) == []


def test_a_client_that_has_gone_leaves_no_process(program):
    """The runner on a host ends the command when its input ends, as after a lost connection."""
    started = program("sleep 600", hosts=HOSTS[:1], attach=False)
    runner = started.processes[0]._session._process
    assert running(started.mark)
    runner.stdin.close()
    runner.wait(30)
    assert running(started.mark) == []
    with pytest.raises(UnhealthyError, match=r"h1: .* ended"):
        started.poll()


def test_output_is_kept(program, tmp_path):
    """A file for each process, whatever its bytes."""
    started = program(["sh", "-c", r"printf '\377ok'; exit 3"], hosts=HOSTS[:1], attach=False)
    started.wait(30.0, check=False)
    program.close()
    assert (tmp_path / "programs" / "test-it-0.0-h1.txt").read_bytes() == b"\xffok"


def test_processes_are_signalled_by_their_programs_name(program):
    """Only what the program has started, and only that executable."""
    started = program(["sh", "-c", "sleep 600; echo woken"], hosts=HOSTS[:1], attach=False)
    other = program("sleep 600", hosts=HOSTS[:1], attach=False)
    name = Path("/bin/sleep").resolve().name
    while len(pids := started.signal(signal.SIGKILL, program=name)) == 0:
        time.sleep(0.02)
    assert len(pids) == 1
    assert started.wait(30.0) == 0
    assert started.output.endswith("woken\n")
    assert other.poll() is None


def test_a_copy_has_the_same_path_everywhere_and_goes_away(program, tmp_path):
    """Executable, and nobody else's to read."""
    tool = tmp_path / "tool"
    tool.write_text("#!/bin/sh\necho made\n")
    tool.chmod(0o755)
    path = program.copy(tool, HOSTS[:1])
    assert Path(path).parent.stat().st_mode & 0o777 == 0o700
    started = program(path, hosts=HOSTS[:1], attach=False)
    assert (started.wait(30.0), started.output) == (0, "made\n")
    program.close()
    assert not Path(path).parent.exists()


@pytest.mark.parametrize(
    ("command", "hosts", "problem"),
    [
        ("", HOSTS, "no command"),
        ("sh -c 'half", HOSTS, "quotation"),
        ("true", [], "no hosts"),
        ("ib_write_bw", HOSTS, "2 hosts, not on 3"),
        ("echo {device}", [Host("h1", "127.0.0.1")], "h1 has no NIC"),
    ],
)
def test_commands_that_cannot_be_meant_are_refused(program, command, hosts, problem):
    """Before anything is started."""
    with pytest.raises(UsageError, match=problem):
        program(command, hosts=hosts, attach=False)


def test_the_gid_is_that_of_the_nics_address_and_of_roce_v2():
    """Not of RoCE v1, not the link-local one; IPv6 as well."""
    table = (
        "0 fe80:0000:0000:0000:0202:c9ff:fe00:0001 IB/RoCE v1\n1 fe80:0000:0000:0000:0202:c9ff:fe00:0001 RoCE v2\n"
        "2 0000:0000:0000:0000:0000:ffff:0a01:0001 IB/RoCE v1\n3 0000:0000:0000:0000:0000:ffff:0a01:0001 RoCE v2\n"
        "4 fd00:0000:0000:0000:0000:0000:0000:0002 RoCE v2\n5 \n"
    )
    assert [gid_index(table, address) for address in ("10.1.0.1", "fd00::2", "10.1.0.2")] == [3, 4, None]


def test_open_mpi_runs_on_the_hosts(program):
    """The launcher's ranks, and one status for them all. The name of the first host is this machine's."""
    if program._where("h1", "mpirun.openmpi") == "":
        pytest.skip("no mpirun.openmpi here (apt-get install openmpi-bin)")
    words = ["mpirun.openmpi", "sh", "-c", "echo $C4BENCH_JOB $OMPI_COMM_WORLD_RANK $C4BENCH_PROGRAM"]
    started = program(words, hosts=HOSTS[:1], slots=2, attach=False)
    assert started.wait(60.0) == 0
    assert sorted(started.output.splitlines()) == [f"test-it-0 {rank} {started.mark}" for rank in (0, 1)]
