"""Who may speak to the agent's socket for programs, and what it takes from them."""

import asyncio
import json
import os
import stat
from contextlib import suppress

import pytest

from c4bench.attach.launchers import Identity
from c4bench.attach.relay import WordRelay
from c4bench.attach.server import (
    AttachedProcess,
    AttachServer,
    Moved,
    PathAnswer,
    make_folder,
    open_records,
    record_files,
    user_ids,
)
from c4bench.budget import ATTACHED
from c4bench.errors import UsageError

QUESTION = {"source": "10.0.0.1", "destination": "10.1.0.1", "qp": 17, "remote_qp": 18}
HELLO = {"ring": "7.ring", "environment": {"C4BENCH_JOB": "j", "RANK": "3", "WORLD_SIZE": "8"}}
OWN = frozenset({os.getuid()})
WORDS = WordRelay((), None)
# Without a newline at the end, larger than a line may be, no JSON, of other types.
NONSENSE = [b'{"ring":"7.ring"}', b"x" * (ATTACHED.bytes + 9) + b"\n", b"\xff\n", b'{"ring":5}\n', b"[]\n"]


async def route(_process, question):
    return PathAnswer(question.qp)


class Follower:
    """Notes what it is given, and sends a line once a queue pair has a path."""

    def __init__(self, send):
        self.send, self.given = send, []

    def add(self, question, label):
        self.given.append((question.qp, label))
        self.send({"move": question.qp})

    def moved(self, said):
        self.given.append(said)

    async def follow(self):
        await asyncio.sleep(60)


def converse(path, *lines, users=OWN, answers=route, followers=None):
    """Send lines over one connection; returns the answers, and the processes that appeared."""
    appeared = []

    def note(process, descriptor):
        os.close(descriptor)
        appeared.append(process)

    async def play():
        made = [] if followers is None else followers
        server = await AttachServer(path, users, note, answers, lambda _, send: follow(made, send), WORDS).start()
        async with server:
            reader, writer = await asyncio.open_unix_connection(path)
            with suppress(ConnectionError):
                writer.write(b"".join(lines))
                writer.write_eof()
            said = b""
            with suppress(ConnectionError):
                said = await reader.read()
            writer.close()
        return [json.loads(line) for line in said.splitlines()], appeared

    return asyncio.run(asyncio.wait_for(play(), 20))


def follow(followers, send):
    followers.append(Follower(send))
    return followers[-1]


def line(value):
    return json.dumps(value).encode() + b"\n"


def test_a_process_is_known_by_the_kernels_word(tmp_path):
    """PID and user are those of the connection, job and rank those of its environment; each question is answered."""
    said, appeared = converse(tmp_path / "s", line(HELLO), line(QUESTION), line({**QUESTION, "qp": 18}))
    assert appeared == [AttachedProcess(os.getpid(), os.getuid(), appeared[0].identity, "7.ring")]
    identity = appeared[0].identity
    assert (identity.job, identity.rank, identity.size) == ("j", 3, 8)
    assert [one for one in said if "move" not in one] == [
        {},
        {"label": 17, "timeout": -1, "retries": -1},
        {"label": 18, "timeout": -1, "retries": -1},
    ]


def test_a_job_may_have_any_name(tmp_path):
    """Also that of the word by which a library's connection about failover begins, which is another one."""
    hello = {**HELLO, "environment": {"C4BENCH_JOB": "failover", "RANK": "0"}}
    said, appeared = converse(tmp_path / "s", line(hello))
    assert (said, appeared[0].identity.job) == ([{}], "failover")
    assert converse(tmp_path / "t", b'{"failover":1}\n') == ([{"twins": ""}], [])


def test_queue_pairs_on_planned_paths_are_followed(tmp_path):
    """Those that got a label, with it; what is sent to them arrives, and what they say of it is passed on.

    One that has a label from an agent before is no question.
    """
    questions = line(QUESTION), line({**QUESTION, "qp": 0}), line({**QUESTION, "qp": 19, "label": 6})  # 0: no label
    moved = {"moved": 17, "device": 1, "label": 5, "refused": 0}
    said, _ = converse(tmp_path / "s", line(HELLO), *questions, line(moved), followers=(followers := []))
    assert followers[0].given == [(17, 17), (19, 6), Moved(17, 1, 5)]
    assert {"move": 17} in said
    assert [one["label"] for one in said if "label" in one] == [17, 0]


def test_users_that_are_not_named_are_sent_away(tmp_path):
    """A user that agent.yml does not name gets the reason and is not followed."""
    said, appeared = converse(tmp_path / "s", line(HELLO), users=frozenset({54321}))
    assert "attach_users" in said[0]["error"]
    assert appeared == []
    assert user_ids(["daemon"]) == {0, os.getuid(), 1}
    with pytest.raises(UsageError, match="no user 'nobody-here'"):
        user_ids(["nobody-here"])


@pytest.mark.parametrize("nonsense", NONSENSE)
def test_nonsense_ends_the_conversation(tmp_path, nonsense):
    """A first line or a question that is none ends the connection, and the server goes on."""
    assert converse(tmp_path / "s", nonsense)[1] == []
    said, appeared = converse(tmp_path / "s", line(HELLO), nonsense)
    assert (said[0], len(appeared)) == ({}, 1)
    assert not [answer for answer in said if "label" in answer]


def test_an_answer_that_is_late_is_followed(tmp_path):
    """The queue pair goes on as the program asked, and is followed once it is planned; others are not."""
    asked = []

    async def late(_process, question):
        asked.append(question.qp)
        while len(asked) < 3:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1 if question.qp == 19 else 0)
        return PathAnswer(849 if question.qp == 17 else 0)

    questions = [line({**QUESTION, "qp": qp}) for qp in (17, 18, 19)]
    said, _ = converse(tmp_path / "s", line(HELLO), *questions, answers=late, followers=(followers := []))
    assert said[1:3] == [{"label": 0, "timeout": -1, "retries": -1}] * 2
    assert followers[0].given == [(17, 0)]


@pytest.fixture
def ring(tmp_path):
    """A folder for records, and a file of ours in it."""
    folder = tmp_path / "records"
    make_folder(folder)
    (folder / "7.ring").write_bytes(b"x")
    return folder


def process(ring, uid=None):
    return AttachedProcess(7, os.getuid() if uid is None else uid, Identity("j"), ring)


def opened(folder, process):
    """Open the records of a process's connections."""
    return open_records(record_files(folder, process)[0], process)


def test_records_are_files_of_the_processs_user_in_the_one_folder(ring):
    """What lies elsewhere, is a link or a pipe, or belongs to somebody else is refused."""
    os.close(opened(ring, process("7.ring")))
    (ring.parent / "9.ring").write_bytes(b"x")
    (ring / "8.ring").symlink_to(ring / "7.ring")
    os.mkfifo(ring / "6.ring")
    for name in ("../9.ring", "8.ring", "6.ring", "5.ring", "x.ring", "/etc/passwd", "7.ring\n", "7.mpi.ring"):
        with pytest.raises(UsageError):
            opened(ring, process(name))
    with pytest.raises(UsageError, match="no file of its user 54321"):
        opened(ring, process("7.ring", uid=54321))
    assert [path.name for path in record_files(ring, process("7.ring"))] == ["7.ring", "7.mpi.ring", "7.nccl.ring"]
    assert record_files(ring, process("")) == ()


def test_anybody_may_write_to_the_folder_and_remove_only_their_own(tmp_path):
    """The folder for records is as /tmp; one that is no folder of ours is not used."""
    make_folder(tmp_path / "records")
    assert stat.S_IMODE((tmp_path / "records").stat().st_mode) == 0o1777
    make_folder(tmp_path / "records")
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(PermissionError, match="somebody else"):
        make_folder(tmp_path / "link")


def test_programs_that_say_nothing_do_not_stay(tmp_path, monkeypatch):
    """Who does not introduce itself within the time for it is sent away, and others are served meanwhile."""
    monkeypatch.setattr("c4bench.attach.server.ATTACHED", type(ATTACHED)(ATTACHED.bytes, 2, 1, 0.2))

    async def play():
        server = await AttachServer(
            tmp_path / "s", user_ids([]), lambda _, end: os.close(end), route, lambda *_: Follower(None), WORDS
        ).start()
        async with server:
            silent = [await asyncio.open_unix_connection(tmp_path / "s") for _ in range(2)]
            reader, writer = await asyncio.open_unix_connection(tmp_path / "s")
            writer.write(line(HELLO))
            refused = json.loads(await reader.readline())
            ended = [await reader.read() for reader, _ in silent]
            for _, each in (*silent, (reader, writer)):
                each.close()
        return refused, ended

    refused, ended = asyncio.run(asyncio.wait_for(play(), 20))
    assert "more than 2 programs" in refused["error"]
    assert ended == [b"", b""]
