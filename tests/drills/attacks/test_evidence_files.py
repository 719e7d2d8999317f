"""Files and reports of strangers that are meant to fill memory, to take for ever, to lie, or to upset the terminal."""

import asyncio
import gzip
import json
import logging
import os
import resource
import signal
import socket
import subprocess
import sys
import time
import tracemalloc
from contextlib import contextmanager
from pathlib import Path

import pytest

from c4bench.agent.ras_poll import RasPoller
from c4bench.budget import RAS_REPORTS
from c4bench.cli.main import main
from c4bench.control.detection.ras_reports import RasReports
from c4bench.evidence import collect as collecting
from c4bench.evidence.judging.judge import judge
from c4bench.evidence.limits import UnreadableError
from c4bench.evidence.ras_client import query

MEMORY = 64 << 20
RESIDENT = 400 << 20  # of a whole process, with all that it imports
ADDRESS_SPACE = 3 << 30
WITHIN_S = 20.0
NOBODY = 65534
# A terminal obeys these: clear the screen, set the title, write right to left; the last is no UTF-8.
EVIL = "a\x1b[2J\x1b]0;x\x07\u202e\nb"

TABLE = """Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
"""


def warned(comms, ranks):
    """A report in which communicators of so many ranks have one that lags: few bytes, many ranks."""
    groups = "".join(f" {number} 1 1 {ranks} {ranks} {ranks} RUNNING MISMATCH\n" for number in range(comms))
    lines = f"different AllReduce operation counts\n  {ranks - 1} ranks have launched up to operation 9\n"
    warnings = "".join(
        f"#{number}-0 (a{number}) MISMATCH\n  Communicator ranks have {lines}"
        f"  Rank 7 has launched up to operation 8 -- GPU 0 managed by process 5 on node n7\n"
        for number in range(comms)
    )
    return f"{TABLE}{groups}\nWarnings\n========\n{warnings}"


MISSING = f"""{TABLE} 0 1 1 3000000 3000000 3000000 RUNNING INCOMPLETE
#0-0 (a0) INCOMPLETE
  Missing communicator data from 3000000 ranks
  The missing ranks: 0-2999999
"""
MANY_GROUPS = warned(400, 60_000)


@contextmanager
def little_memory():
    """Fails if the body takes more than `MEMORY` at any moment."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < MEMORY
    finally:
        tracemalloc.stop()


def refused(capsys, *words):
    """The lines of an answer: each tells of what is wrong, in one line of printable text."""
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert lines
    assert all(line.isprintable() and line.startswith("c4bench: ") for line in lines)
    assert all(line.isprintable() for line in out.splitlines())
    assert [word for word in words if word not in err] == []
    assert "Traceback" not in err
    return lines


# The command, which writes at its end how much memory it had at most; getrusage would count its parent's.
MEASURED = """
import atexit, pathlib, sys
from c4bench.cli.main import main
peak = pathlib.Path(sys.argv.pop(1))
atexit.register(lambda: peak.write_text(pathlib.Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]))
sys.exit(main())
"""


def run(*arguments, peak=os.devnull):
    """The command in a process of its own with little memory and time: exit code, output and errors.

    `peak` is a file for the most resident memory that it had, in KiB.
    """
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, peak, *map(str, arguments)],
        capture_output=True, timeout=WITHIN_S, check=False, stdin=subprocess.DEVNULL,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE)),
    )  # fmt: skip
    error = done.stderr.decode()
    assert "Traceback" not in error
    return done.returncode, done.stdout, error


@pytest.mark.parametrize(
    "report",
    [
        pytest.param(warned(3, 1_000_000), marks=pytest.mark.attack("text of few bytes is millions of records")),
        pytest.param(MISSING, marks=pytest.mark.attack("variant: a list of ranks is a range of millions")),
        pytest.param(MANY_GROUPS, marks=pytest.mark.attack("variant: many communicators within the bound each")),
    ],
    ids=["records", "range", "communicators"],
)
def test_a_short_report_does_not_become_millions_of_records(tmp_path, report):
    """What a text only counts is bounded before it is made: one line, little memory, and the rest is judged."""
    path = tmp_path / "ras.txt"
    path.write_text(report)
    code, _, error = run("detect", path, peak=tmp_path / "peak")
    assert code == 2
    assert "which is the most that is accepted" in error
    assert all(line.startswith("c4bench: ") for line in error.splitlines())
    assert int((tmp_path / "peak").read_text()) << 10 < RESIDENT


GONE = f"""{TABLE} 0 1 1 4 4 4 RUNNING INCOMPLETE
#0-0 (a0) INCOMPLETE
  Missing communicator data from 1 rank
  Rank 9007199254740992 -- GPU 0 managed by process 903 on node n7
"""
MORE_THAN_ALL = warned(1, 4).replace("3 ranks have", "65535 ranks have")


@pytest.mark.parametrize(
    "report",
    [
        pytest.param(GONE, marks=pytest.mark.attack("49.8 variant: a rank that no communicator has")),
        pytest.param(MORE_THAN_ALL, marks=pytest.mark.attack("49.8 variant: more ranks than the communicator has")),
    ],
    ids=["rank", "count"],
)
def test_what_the_table_of_communicators_contradicts_is_not_followed(report):
    """A number beyond the communicator makes no ranks, neither in the reading nor in the judgement of it."""
    began_s = time.process_time()
    reading = collecting.parse(report.encode(), Path("ras.txt"))
    assert len(reading.members) <= 5
    assert judge(reading).ranks <= 4
    assert time.process_time() - began_s < 1.0


@contextmanager
def listening(user, answer):
    """A process of `user` that listens on a port of this machine and sends `answer()` to whoever asks; the port."""
    server = socket.create_server(("127.0.0.1", 0)) if user == os.geteuid() else None
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        try:
            os.setuid(user)
            server = server or socket.create_server(("127.0.0.1", 0))
            theirs.sendall(str(server.getsockname()[1]).encode())
            while True:
                connection, _ = server.accept()
                with connection:
                    connection.recv(100)
                    answer(connection)
        except OSError:
            os._exit(0)
        finally:
            os._exit(1)
    try:
        yield int(ours.recv(10))
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        for end in (ours, theirs, *([server] if server else [])):
            end.close()


def lie(connection):
    """A report by which a process of another host is dead."""
    gone = [{"rank": 1, "host": "n1", "pid": 5, "status": {"considered_dead": True}}]
    comm = {"hash": "0xa", "size": 2, "ranks": [], "missing_ranks": gone}
    connection.sendall(json.dumps({"nccl_version": "2.30.1", "communicators": [comm]}).encode())


def logged(caplog):
    """Let the poller's lines through, whatever logging an earlier test has configured."""
    logger = logging.getLogger("c4bench.agent.ras_poll")
    caplog.set_level(logging.INFO, logger.name)
    if caplog.handler not in logger.handlers and not logging.getLogger("c4bench").propagate:
        logger.addHandler(caplog.handler)


def polled(place, users=()):
    """The reports that a poller passes on when it asks once."""
    sent = []

    async def send(report):
        sent.append(report)

    asyncio.run(RasPoller(place, 60.0, send, users).poll())
    return sent


@pytest.mark.attack("any user listens on RAS's port")
def test_a_stranger_on_the_port_of_ras_is_not_believed(caplog):
    """What another user answers reaches no master; the log says who it is and what to do. A named user is believed."""
    logged(caplog)
    with listening(NOBODY, lie) as port:
        assert polled(f"127.0.0.1:{port}") == []
        (line,) = [record.getMessage() for record in caplog.records if "RAS" in record.getMessage()]
        assert "nobody listens, who is not believed; ras_users" in line
        assert len(polled(f"localhost:{port}", ["nobody"])) == 1
    with listening(os.geteuid(), lie) as port:
        assert len(polled(f"127.0.0.1:{port}")) == 1


@pytest.mark.attack("variant: RAS on another host")
def test_a_port_of_another_host_is_not_asked(caplog):
    """Whose the port of another host is cannot be seen: it is not asked, though the same port here is trusted."""
    logged(caplog)
    with listening(os.geteuid(), lie) as port:
        assert polled(f"192.0.2.1:{port}") == []
    assert "give localhost" in caplog.text


def drip(connection):
    """A byte now and then, for ever."""
    while True:
        connection.sendall(b"N")
        time.sleep(0.05)


def flood(connection):
    """Bytes without end."""
    while True:
        connection.sendall(bytes(1 << 20))


@pytest.mark.parametrize("answer", [drip, flood])
@pytest.mark.attack("variant: a listener that never ends")
def test_an_answer_without_end_is_cut_off(answer):
    """Whoever answers slowly for ever, or without end, is left after the time and bytes of a report."""
    with listening(os.geteuid(), answer) as port, little_memory():
        began_s = time.monotonic()
        with pytest.raises(UnreadableError, match="is it NCCL that listens there"):
            query("127.0.0.1", port, 1.0)
        assert time.monotonic() - began_s < 5.0


@pytest.mark.attack("what the master keeps of reports never shrinks")
def test_jobs_that_are_not_heard_of_any_more_are_forgotten():
    """Reports of ever new jobs, and large ones of many hosts, leave no more with the master than the budget."""
    reports = RasReports(lambda *_: None, lambda *_: None)

    def send(host, comm, now_s):
        ranks = [{"rank": 0, "host": host, "pid": 5, "collective_counts": {"AllReduce": 1}}]
        document = {"communicators": [{"hash": comm, "size": 1, "ranks": ranks}]}
        return reports.ingest(host, gzip.compress(json.dumps(document).encode(), 1), now_s)

    async def play():
        for number in range(2 * RAS_REPORTS.names):
            await send("h0", f"{number:x}", 100.0)
        assert len(reports._seen) == RAS_REPORTS.names
        await send("h0", "last", 1000.0)

    asyncio.run(play())
    assert list(reports._seen) == ["nccl-last"]


@pytest.fixture
def odd(tmp_path):
    """Things that are no file to be read: by name."""
    sparse = tmp_path / "sparse"
    with sparse.open("wb") as file:
        file.truncate(1 << 40)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/zero")
    return {"device": "/dev/zero", "sparse": sparse, "pipe": tmp_path / "pipe", "link": tmp_path / "link"}


@pytest.mark.parametrize(
    ("command", "what", "words"),
    [
        pytest.param("detect", "device", "no regular file", marks=pytest.mark.attack("detect /dev/zero")),
        pytest.param("detect", "sparse", "more than 268,435,456 bytes", marks=pytest.mark.attack("sparse file")),
        pytest.param("detect", "pipe", "it is a pipe", marks=pytest.mark.attack("variant: a pipe")),
        pytest.param("convert", "link", "no regular file", marks=pytest.mark.attack("variant: convert a link")),
        pytest.param("downtime", "sparse", "more than", marks=pytest.mark.attack("variant: downtime")),
    ],
)  # fmt: skip
def test_what_is_no_file_is_refused(odd, tmp_path, command, what, words):
    """A device, a pipe and a file of a terabyte are refused in one line, at once and unread."""
    options = ["--to", "ras", "--out", tmp_path / "out"] if command == "convert" else []
    code, _, error = run(command, odd[what], *options)
    assert code == 2
    assert words in error
    assert len(error.splitlines()) <= 2
    assert not (tmp_path / "out").exists()


@pytest.mark.attack("variant: a folder of them, and of too many files")
def test_a_folder_keeps_to_the_bounds(odd, tmp_path, capsys, monkeypatch):
    """In a folder each of them is named and left out; one of more files than the bound is cut, and that is said."""
    assert main(["detect", str(tmp_path)]) == 2
    refused(capsys, "sparse: ", "link: ", "pipe: it is a pipe; give --follow")
    deep = tmp_path / "deep"
    for number in range(60):
        (deep / f"{number % 6}" / str(number)).mkdir(parents=True)
    (deep / "again").symlink_to(deep)
    monkeypatch.setattr(collecting, "MOST_FILES", 50)
    assert main(["detect", str(deep)]) == 2
    refused(capsys, "more than 50 files and folders; the rest is not read")
    assert odd


@pytest.mark.parametrize(
    ("name", "content"),
    [
        pytest.param(EVIL, "nothing", marks=pytest.mark.attack("control characters in file names")),
        pytest.param(
            os.fsdecode(b"\xff\xfe") + EVIL, MISSING.replace("a0", "b"),
            marks=pytest.mark.attack("variant: a name that is no UTF-8"),
        ),
        pytest.param(
            "ras.txt", warned(1, 9).replace("n7", "\x1b[2J\x1b]0;x\x07\u202e"),
            marks=pytest.mark.attack("variant: control characters in a host's name"),
        ),
    ],
)  # fmt: skip
def test_names_write_nothing_on_the_terminal(tmp_path, capsys, name, content):
    """Names of files, hosts and communicators are printed on one line, escaped, also where they are no UTF-8."""
    path, second = tmp_path / name, tmp_path / "second"
    path.write_text(content)
    second.write_text("nothing")
    for form in ("--explain", "--json", "--reasons=slurm"):
        assert main(["detect", form, str(path), str(second)]) == 2
        refused(capsys, "it is of no known format", f"{second}")
