"""The two ends of a program of others, attached with --failover, and what they have of agents: words from end to end.

Exit code 0 says that a program found everything right, WRONG that something came wrong, others that it had an error.
"""

import asyncio
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path

from c4bench import namespaces
from c4bench.attach import build, starting
from c4bench.attach.environment import RECORDS, SOCKET, failover_variables, variables
from c4bench.attach.relay import WordRelay
from c4bench.attach.server import AttachedProcess, AttachServer, PathAnswer, PathQuestion, make_folder, user_ids
from c4bench.attach.site import gid_index
from c4bench.exhaust.outcome import RankEnd
from c4bench.exhaust.program import Program
from c4bench.foreign_text import one_line
from c4bench.inventory import Access
from c4bench.model.fabric import Host, Nic
from c4bench.wire.messages import AttachedWord

WRONG = 3
_FOLDER = Path("/run/tmp")
_HERE = Access("", connection="local")
_DEVICES = Path("/sys/class/infiniband")
# The agent's socket, as all processes of a host see it; the files of a launcher; what ends all that it has started.
_SOCKET = _FOLDER / "attach.sock"
_LAUNCHER = _FOLDER / "launcher"
_WITH_ALL = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")


def become(program: Program, rank: int, hosts: Sequence[Host], before: Callable[[], None]) -> None:
    """Have this process, which is on the rank's host, be its end of the program; returns only by an OSError."""
    host = hosts[rank]
    descriptor = os.open(_output(rank), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.environ.update(_environment())
    _SOCKET.touch()
    namespaces.bind(str(_socket(host)), str(_SOCKET))
    words = _words(program, rank, hosts)
    if program.launcher is not None:
        words = _launched(words, program.launcher, hosts)
    before()
    os.execvp(words[0], words)


def end(rank: int, code: int) -> RankEnd:
    """What it means that the rank's process has ended so."""
    lines = _output(rank).read_text(errors="replace").splitlines()
    said = one_line(lines[-1]) if lines else ""
    if code in {0, WRONG}:
        return RankEnd(exact=int(code == 0), checked=1, said=said)
    return RankEnd(raised=f"exit code {code}: {said or 'nothing said'}")


@cache
def _environment() -> dict[str, str]:
    """The variables of every end: what is preloaded is found by a digest of all its sources."""
    preloaded = variables(build.libraries(failover=True), build.profiler(), os.environ)
    return preloaded | failover_variables(os.environ) | {SOCKET: str(_SOCKET)}


@contextmanager
def agents(hosts: Sequence[Host]) -> Iterator[None]:
    """While the block runs, a process brings words between programs on these hosts."""
    make_folder(Path(_environment()[RECORDS]))
    pid = os.fork()
    if pid == 0:
        try:
            asyncio.run(_serve(hosts))
        finally:
            os._exit(1)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _launched(words: starting.Words, launcher: int, hosts: Sequence[Host]) -> starting.Words:
    """The words of Hydra's mpirun, which reaches hosts by their network namespaces; all that it starts ends with it."""
    places = [starting.Place(host, _HERE, partial(_gid, host.nics[0])) for host in hosts]
    _LAUNCHER.mkdir(exist_ok=True)
    for name, text in (starting.launcher_files(places, 1) | {starting.SHELL: _shell(hosts)}).items():
        (_LAUNCHER / name).write_text(text)
        (_LAUNCHER / name).chmod(0o755)
    os.environ.update(starting.launcher_environment(_LAUNCHER, (), os.environ["PATH"]))
    own = ("-localhost", hosts[0].address)
    return (*_WITH_ALL, *words[: launcher + 1], *own, *words[launcher + 1 :])


def _shell(hosts: Sequence[Host]) -> str:
    """A remote shell, `ssh [OPTION...] HOST COMMAND...`, that enters a host's network with the socket of its agent."""
    branches = "".join(f"{host.address}) name={host.name} socket={_socket(host)} ;;\n" for host in hosts)
    return (
        "#!/bin/sh\n"
        "while case $1 in -*) ;; *) false ;; esac; do shift; done\n"
        f"case $1 in\n{branches}esac\nshift\n"
        f'exec ip netns exec $name sh -c \'mount --bind $0 {_SOCKET} && eval "$*"\' $socket "$@"\n'
    )


def _output(rank: int) -> Path:
    return _FOLDER / f"trial-{rank}.txt"


def _socket(host: Host) -> Path:
    return _FOLDER / f"attach-{host.name}.sock"


def _words(program: Program, rank: int, hosts: Sequence[Host]) -> starting.Words:
    """The second end has the first one's address as its last word, unless the command says where that is."""
    named = any("{server" in word for word in program.command)
    words = program.command if rank == 0 or named else (*program.command, "{server}")
    own = {"{bytes}": str(program.size_bytes), "{operations}": str(program.operations)}
    words = tuple(own.get(word, word) for word in words)
    return starting.filled(words, starting.Place(hosts[rank], _HERE, partial(_gid, hosts[rank].nics[0])), hosts[0])


def _gid(nic: Nic) -> int:
    """Raises OSError where the NIC has no GID of RoCE v2 with its address."""
    port = _DEVICES / nic.device / "ports" / "1"
    for index in range(16):
        gid = (port / "gids" / str(index)).read_text().strip()
        if gid.strip("0:") and (found := _gid_is(port, nic, index, gid)) is not None:
            return found
    raise OSError(f"{nic.device} has no GID with {nic.address}")


def _gid_is(port: Path, nic: Nic, index: int, gid: str) -> int | None:
    kind = (port / "gid_attrs" / "types" / str(index)).read_text().strip()
    return gid_index(f"{index} {gid} {kind}", nic.address)


class _Follower:
    """Plans no paths."""

    def add(self, question: PathQuestion, label: int) -> None:
        """Nothing to note."""

    def moved(self, said: object) -> None:
        """Nothing to note."""

    async def follow(self) -> None:
        """Until cancelled."""
        await asyncio.Event().wait()


async def _as_asked(_process: AttachedProcess, _question: PathQuestion) -> PathAnswer:
    return PathAnswer()


def _follow(_process: AttachedProcess, _send: Callable[[Mapping[str, int]], bool]) -> _Follower:
    return _Follower()


async def _serve(hosts: Sequence[Host]) -> None:
    relays: dict[str, WordRelay] = {}

    async def forward(word: AttachedWord) -> None:
        if relay := relays.get(word.destination):
            relay.deliver(word)

    for host in hosts:
        relay = WordRelay(host.nics, forward)
        relays |= {nic.address: relay for nic in host.nics}
        appeared = lambda _process, descriptor: os.close(descriptor)  # noqa: E731
        await AttachServer(_socket(host), user_ids([]), appeared, _as_asked, _follow, relay).start()
    await asyncio.Event().wait()
