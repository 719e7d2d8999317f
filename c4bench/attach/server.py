"""The agent's socket for programs that we did not write: which processes there are, and which paths they ask for.

Whoever connects is known by the kernel's word for it (SO_PEERCRED), and only configured users are listened to. All that
a program says is foreign: a message is one line of JSON of bounded length, a telemetry file is one that the program's
user owns in the one folder for them, and a program that breaks a rule is no longer listened to; it runs on as before.

    {"ring":"123.ring","environment":{"RANK":"0"}}                          first
    {} or {"error":"why not"}                                               its answer
    {"source":"10.0.0.1","destination":"10.1.0.1","qp":17,"remote_qp":18}   a question
    {"label":5,"timeout":-1,"retries":-1}                                   its answer
    {"source":...,"qp":17,"remote_qp":18,"device":1,"label":5}              it has that label from an agent before
    {"move":17,"device":1,"label":6}                                        from the agent: a queue pair should move
    {"moved":17,"device":1,"label":6}                                       it has that label now; 0: it is gone
"""

import asyncio
import logging
import os
import pwd
import re
import socket
import stat
import struct
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Protocol

import msgspec

from c4bench.attach.launchers import Identity, identify
from c4bench.attach.relay import FIRST, WordRelay
from c4bench.budget import ATTACHED
from c4bench.decoding import DecodingError, from_json
from c4bench.errors import C4Error, UsageError
from c4bench.foreign_text import one_line

_logger = logging.getLogger(__name__)

# The library goes on without an answer after this (s).
ANSWER_WITHIN_S = 0.25
_AS_ASKED = -1
_MOVED = b'"moved"'
_CREDENTIALS = struct.Struct("3i")
_RING = re.compile(r"[0-9]{1,10}\.ring")
# Beside it, where a library records what its program calls of MPI or NCCL.
_CALLS = (".mpi.ring", ".nccl.ring")
_OPEN = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_FOLDER_MODE = 0o1777


class AttachHello(msgspec.Struct, frozen=True):
    """A program's first line: its telemetry file's name ("" where it has none), and what its launcher has set."""

    ring: str
    environment: dict[str, str] = {}


class PathQuestion(msgspec.Struct, frozen=True):
    """A line with a question: a queue pair that is about to be connected, between two NICs known by their addresses.

    With a `label` it is none: the queue pair is connected, and has that from an agent that has ended since.
    """

    source: str
    destination: str
    qp: int
    remote_qp: int = 0
    device: int = 0
    label: Annotated[int, msgspec.Meta(ge=0, lt=1 << 20)] = 0


class Moved(msgspec.Struct, frozen=True):
    """A line about a queue pair on a planned path: the GRH's flow label that it has now, 0 once it is gone.

    `refused` is not 0 where it could not be moved.
    """

    moved: int
    device: int
    label: int
    refused: int = 0


class PathAnswer(msgspec.Struct, frozen=True):
    """The GRH's flow label, 0 as the program asked; `timeout` and `retries` likewise, by verbs' numbers and -1."""

    label: int = 0
    timeout: int = _AS_ASKED
    retries: int = _AS_ASKED


class AttachedProcess(msgspec.Struct, frozen=True):
    """A process that has said who it is. `ring` is the name of its telemetry file; "" where it records nothing."""

    pid: int
    uid: int
    identity: Identity
    ring: str = ""


def user_ids(names: Iterable[str]) -> frozenset[int]:
    """The users that may attach: root, this process's own, and those of these names.

    Raises UsageError for a name that no user of this host has.
    """
    allowed = {0, os.getuid()}
    for name in names:
        try:
            allowed.add(pwd.getpwnam(name).pw_uid)
        except KeyError:
            raise UsageError(f"attach_users: there is no user {one_line(name)!r} on this host") from None
    return frozenset(allowed)


def make_folder(path: Path) -> None:
    """Create the folder that programs write their records to, as anybody may in /tmp.

    Raises OSError where that is not possible, or where somebody else has made it.
    """
    with suppress(FileExistsError):
        path.mkdir(parents=True)
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid not in {0, os.getuid()}:
        raise PermissionError(f"{path} belongs to somebody else (user {status.st_uid}); remove it")
    if status.st_uid == os.getuid():
        path.chmod(_FOLDER_MODE)


def record_files(folder: Path, process: AttachedProcess) -> tuple[Path, ...]:
    """The telemetry files that a process may have in `folder`, its connections' first; none if it records nothing.

    Raises UsageError for a name that none of them has.
    """
    if not process.ring:
        return ()
    if not _RING.fullmatch(process.ring):
        raise UsageError(f"process {process.pid}: its records are no NUMBER.ring of {folder}")
    number = process.ring.partition(".")[0]
    return (folder / process.ring, *(folder / f"{number}{suffix}" for suffix in _CALLS))


def open_records(path: Path, process: AttachedProcess) -> int:
    """Open a telemetry file of a process; returns the descriptor.

    Raises UsageError for what is no plain file, or belongs to another user than the process does.
    """
    try:
        descriptor = os.open(path, _OPEN)
    except OSError as error:
        raise UsageError(f"process {process.pid}: {path} cannot be read: {error.strerror}") from None
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_uid != process.uid:
        os.close(descriptor)
        raise UsageError(f"process {process.pid}: {path} is no file of its user {process.uid}")
    return descriptor


class Follower(Protocol):
    """Keeps a process's queue pairs on the plan."""

    def add(self, question: PathQuestion, label: int) -> None:
        """A queue pair has got this flow label; 0 for one that has a path in the plan and is not on it yet."""

    def moved(self, said: Moved) -> None:
        """The process says where a queue pair is now."""

    async def follow(self) -> None:
        """Have them moved, until cancelled."""


class AttachServer:
    """Listens for programs of these `users`, which are their numbers.

    `appeared` gets a process that has said who it is, and a descriptor of it (pidfd_open(2)), which is then its own;
    it raises UsageError for one that is not taken. `route` answers questions. `planned` makes what follows a process's
    queue pairs, given what takes a line to it, false where that does not listen. `relay` serves a process whose
    connections go on at other NICs (relay.py).
    """

    def __init__(
        self,
        path: Path,
        users: frozenset[int],
        appeared: Callable[[AttachedProcess, int], None],
        route: Callable[[AttachedProcess, PathQuestion], Awaitable[PathAnswer]],
        planned: Callable[[AttachedProcess, Callable[[Mapping[str, int]], bool]], Follower],
        relay: WordRelay,
    ) -> None:
        self._path, self._users = path, users
        self._appeared, self._route, self._planned = appeared, route, planned
        self._relay = relay
        self._connected = 0
        self._speaking = 0  # of these, those of libraries about failover
        self._warned: set[str] = set()

    async def start(self) -> asyncio.Server:
        """Listen; anybody may connect, and is then looked at."""
        self._path.unlink(missing_ok=True)
        server = await asyncio.start_unix_server(self._serve, self._path, limit=ATTACHED.bytes)
        self._path.chmod(0o666)
        return server

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connected += 1
        try:
            await self._converse(reader, writer)
        except (DecodingError, UsageError) as error:
            self._warn(one_line(error))
            with suppress(OSError):
                writer.write(msgspec.json.encode({"error": one_line(error)}) + b"\n")
        except (OSError, ValueError, TimeoutError, asyncio.IncompleteReadError):
            pass  # it has gone, or its line is too long, or it does not speak
        finally:
            self._connected -= 1
            writer.close()

    def _warn(self, why: str) -> None:
        """Log each refusal once; programs try again."""
        if why not in self._warned and len(self._warned) < ATTACHED.records:
            self._warned.add(why)
            _logger.warning("not attached: %s", why)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._connected > 3 * ATTACHED.records:
            return
        pid, uid, descriptor = _peer(writer.get_extra_info("socket"))
        try:
            # Read before anything is refused: closing a socket with unread data also drops what was sent.
            async with asyncio.timeout(ATTACHED.seconds):
                line = await reader.readuntil()
            if uid not in self._users:
                raise UsageError(f"programs of user {uid}; name the user in attach_users of agent.yml")
            if line.startswith(FIRST):
                await self._serve_words(reader, writer, pid)
                return
            if self._connected - self._speaking > ATTACHED.records:
                raise UsageError(f"more than {ATTACHED.records} programs on this host")
            hello = from_json(line, AttachHello)
            process = AttachedProcess(pid, uid, identify(hello.environment), hello.ring)
            self._appeared(process, os.dup(descriptor))
        finally:
            os.close(descriptor)
        writer.write(b"{}\n")
        follower = self._planned(process, partial(_send, writer))
        tasks = {asyncio.create_task(follower.follow())}
        try:
            while line := await reader.readline():
                if late := await self._serve_line(process, line, writer, follower):
                    tasks.add(late)
                    late.add_done_callback(tasks.discard)
        finally:
            for task in tasks:
                task.cancel()

    async def _serve_words(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pid: int) -> None:
        """Serve a library whose connections go on at other NICs. Raises UsageError where there are too many."""
        if self._speaking >= ATTACHED.records:
            raise UsageError(f"more than {ATTACHED.records} programs with --failover on this host")
        self._speaking += 1
        try:
            await self._relay.serve(reader, writer, pid)
        finally:
            self._speaking -= 1

    async def _serve_line(
        self, process: AttachedProcess, line: bytes, writer: asyncio.StreamWriter, follower: Follower
    ) -> asyncio.Task[None] | None:
        """Answer a question, or note what the process says; return what goes on where the answer is late.

        Raises DecodingError for what is neither.
        """
        if _MOVED in line:
            follower.moved(from_json(line, Moved))
            return None
        question = from_json(line, PathQuestion)
        if question.label:
            follower.add(question, question.label)
            return None
        routing = asyncio.ensure_future(self._route(process, question))
        in_time, _ = await asyncio.wait({routing}, timeout=ANSWER_WITHIN_S)
        answer = await _answer(routing) if in_time else PathAnswer()
        writer.write(msgspec.json.encode(answer) + b"\n")
        await writer.drain()
        if answer.label:
            follower.add(question, answer.label)
        return None if in_time else asyncio.create_task(_follow_late(routing, question, follower))


async def _answer(routing: asyncio.Future[PathAnswer]) -> PathAnswer:
    """The answer to a question; where there is an error, the program's own choice stands."""
    try:
        return await routing
    except C4Error:
        return PathAnswer()


async def _follow_late(routing: asyncio.Future[PathAnswer], question: PathQuestion, follower: Follower) -> None:
    """Follow a queue pair that did not wait for its answer: where it is planned by then, it is to move there."""
    if (await _answer(routing)).label:
        follower.add(question, 0)


def _send(writer: asyncio.StreamWriter, line: Mapping[str, int]) -> bool:
    """Send a line to a process. False for one that has gone, or has not read what was sent before."""
    if writer.is_closing() or writer.transport.get_write_buffer_size():
        return False
    writer.write(msgspec.json.encode(line) + b"\n")
    return True


def _peer(connection: socket.socket) -> tuple[int, int, int]:
    """Process, user and a descriptor of the process at the other end. Raises OSError where it has ended already."""
    packed = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(packed)
    return pid, uid, os.pidfd_open(pid)
