"""Programs on the hosts of an inventory, for one scenario: how they are started there, and what is kept of them."""

import os
import shutil
import socket
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import cache, partial
from pathlib import Path, PurePosixPath
from typing import Self

from c4bench import files
from c4bench.attach import starting
from c4bench.attach.launchers import JOB, is_launcher
from c4bench.attach.programs import MARK, Program, Reach, Start
from c4bench.decoding import DecodingError, from_json
from c4bench.errors import C4Error, UnhealthyError, UsageError
from c4bench.foreign_text import one_line
from c4bench.inventory import Access
from c4bench.model.fabric import Host
from c4bench.remote import connect

HERE = "here"
_TIMEOUT_S = 60.0
_ROCE_V2 = "RoCE v2"
# Without a process for each of a table's many entries, most of which are empty and have no type.
_GIDS = """\
cd "/sys/class/infiniband/$1/ports/1/gids" || exit
for index in *; do
  read -r gid < $index && read -r kind < ../gid_attrs/types/$index && echo "$index $gid $kind"
done 2>/dev/null
true
"""


class Site:
    """Starts programs on hosts; `close` ends them all, and keeps what each has printed in `folder`.

    `access` is how hosts are reached, `name` the scenario's, by which jobs and files are named. Launchers run on this
    machine, and reach the hosts as the inventory says; where this machine has no such launcher, they run on the first
    host, and reach the others by its own `ssh`.
    """

    def __init__(self, access: Mapping[str, Access], name: str, folder: Path, *, reach: Reach = connect) -> None:
        self._access, self._name, self._folder, self._reach = access, name, folder, reach
        self._programs: list[Program] = []
        self._undo = ExitStack()
        self._gid = cache(self._gid_of)
        self._attached = cache(self._attach_environment)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def __call__(
        self,
        command: str | Sequence[str],
        *,
        hosts: Sequence[Host],
        server: str | Sequence[str] = "",
        attach: bool = True,
        environment: Mapping[str, str] = {},
        slots: int = 1,
        job: str = "",
        ready_s: float | None = None,
        within_s: float = _TIMEOUT_S,
    ) -> Program:
        """Start a program; returns once it runs.

        A launcher such as mpirun or srun starts ranks on the hosts, `slots` on each. perftest and other programs with
        server and client, and those with a `server` command, have the server on the first of two hosts; the client
        starts once the server listens, or after `ready_s`. All others run once on each host. `environment` is added,
        for a launcher as on the first host; with `attach`, c4bench watches and steers it, as job `job` (by default the
        scenario's name and a number).

        Raises UsageError for a command that cannot be meant, UnhealthyError where it cannot be started within
        `within_s`.
        """
        if not hosts:
            raise UsageError(f"{command}: no hosts are given to run it on")
        words = starting.words_of(command)
        serving = starting.words_of(server) if server else words
        job = job or f"{self._name}-{len(self._programs)}"
        places = [self._place(host) for host in hosts]
        added = {**(self._attached(hosts[0].name) if attach else {}), **environment}
        if is_launcher(words):
            program = self._launched(words, places, job, slots, {JOB: job, **starting.filled_values(added, places[0])})
        elif server or starting.is_served(words):
            program = self._program(job, starting.server_and_client(serving, words, places, job, added), places)
            program.start_server(within_s, ready_s)
        else:
            program = self._program(job, starting.on_each(words, places, job, added), places)
        program.start()
        return program

    def copy(self, file: Path, hosts: Sequence[Host]) -> str:
        """Copy a file to a folder of the scenario's own on each host, until `close`; returns its path, equal on all."""
        folder = PurePosixPath(f"/tmp/c4bench-{os.urandom(8).hex()}")
        for host in hosts:
            with self._reach(host.name, self._access[host.name]) as connection:
                connection.run(["mkdir", "-m", "700", str(folder)], timeout_s=_TIMEOUT_S)
                self._undo.callback(self._remove, host.name, str(folder), self._access[host.name])
                connection.put(file, str(folder / file.name))
        return str(folder / file.name)

    def has(self, tool: str, hosts: Sequence[Host]) -> bool:
        """Whether all hosts have a program of that name on their PATH."""
        return all(self._where(host.name, tool) for host in hosts)

    def close(self) -> None:
        """End all programs, keep their output, remove copies. Raises UnhealthyError that names what is left."""
        problems = []
        for number, program in enumerate(self._programs):
            self._keep(number, program)
            try:
                program.close()
            except C4Error as error:
                problems.append(str(error))
        self._programs.clear()
        self._undo.close()
        if problems:
            raise UnhealthyError("; ".join(problems))

    def _program(self, job: str, starts: Sequence[Start], places: Sequence[starting.Place]) -> Program:
        hosts = {place.host.name: place.access for place in places}
        self._programs.append(Program(job, starts, hosts, reach=self._reach))
        return self._programs[-1]

    def _launched(
        self, words: starting.Words, places: Sequence[starting.Place], job: str, slots: int, added: Mapping[str, str]
    ) -> Program:
        """A launcher, here or on the first host. Raises UnhealthyError where neither has it."""
        here = shutil.which(words[0]) is not None
        first = places[0].host
        host, access = (HERE, Access("", connection="local")) if here else (first.name, places[0].access)
        if not here and not self._where(first.name, words[0]):
            raise UnhealthyError(f"no {words[0]} here or on {first.name}; install it, or name one by its path")
        folder = self._give(host, access, starting.launcher_files(places, slots))
        address = _own_address(first.address) if here else first.address
        networks = _networks([address, *(place.host.address for place in places)])
        hosts = [place.host for place in places]
        version = self._version(host, access, words[0])
        program = self._program(job, (), places)
        words, own = starting.launched(words, hosts, address, version, {**added, MARK: program.mark})
        own |= starting.launcher_environment(folder, networks, os.environ["PATH"] if here else "")
        program.starts = (Start(host, access, words, own),)
        return program

    def _version(self, host: str, access: Access, launcher: str) -> str:
        with self._reach(host, access) as connection:
            said = connection.run([launcher, "--version"], timeout_s=_TIMEOUT_S, check=False).stdout
        return said.decode(errors="replace")

    def _give(self, host: str, access: Access, texts: Mapping[str, str]) -> PurePosixPath:
        """Write files into a new folder on a host, until `close`; returns the folder."""
        with self._reach(host, access) as connection, tempfile.TemporaryDirectory() as scratch:
            made = connection.run(["mktemp", "-d", "/tmp/c4bench-XXXXXXXX"], timeout_s=_TIMEOUT_S).stdout
            folder = PurePosixPath(made.decode().strip())
            self._undo.callback(self._remove, host, str(folder), access)
            for name, text in texts.items():
                local = Path(scratch) / name
                local.write_text(text)
                local.chmod(0o700)
                connection.put(local, str(folder / name))
        return folder

    def _remove(self, host: str, folder: str, access: Access) -> None:
        with suppress(C4Error), self._reach(host, access) as connection:
            connection.run(["rm", "-rf", folder], timeout_s=_TIMEOUT_S)

    def _where(self, host: str, tool: str) -> str:
        with self._reach(host, self._access[host]) as connection:
            found = connection.run(["sh", "-c", 'command -v "$0"', tool], timeout_s=_TIMEOUT_S, check=False)
        return found.stdout.decode(errors="replace").strip()

    def _place(self, host: Host) -> starting.Place:
        return starting.Place(host, self._access[host.name], partial(self._gid, host))

    def _gid_of(self, host: Host) -> int:
        """The index of the GID with the address of the host's first NIC, of RoCE v2 where the table says so."""
        nic = host.nics[0]
        with self._reach(host.name, self._access[host.name]) as connection:
            listed = connection.run(["sh", "-c", _GIDS, "sh", nic.device], timeout_s=_TIMEOUT_S).stdout
        index = gid_index(listed.decode(errors="replace"), nic.address)
        if index is None:
            raise UnhealthyError(f"{host.name}: {nic.device} has no GID of RoCE v2 with {nic.address}; is the NIC up?")
        return index

    def _attach_environment(self, host: str) -> dict[str, str]:
        """The variables by which programs on a host are attached, as c4bench there says."""
        access = self._access[host]
        with self._reach(host, access) as connection:
            answer = connection.run([access.python, "-m", "c4bench.attach"], timeout_s=_TIMEOUT_S).stdout
        try:
            return from_json(answer, dict[str, str])
        except DecodingError as error:
            raise UnhealthyError(f"{host}: c4bench there says {one_line(answer[:80])}: {error}") from None

    def _keep(self, number: int, program: Program) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        for index, process in enumerate(program.processes):
            with suppress(C4Error):  # what has been read of a lost one is kept
                process.output()
            name = f"{self._name}-{number}.{index}-{process.host}.txt"
            files.replace(self._folder / name, [process.printed])


def gid_index(listed: str, address: str) -> int | None:
    """The index of an IPv4 or IPv6 address in lines of index, GID and type; None where no RoCE v2 GID has it."""
    wanted = socket.inet_pton(socket.AF_INET6, address if ":" in address else f"::ffff:{address}")
    for line in listed.splitlines():
        index, _, rest = line.partition(" ")
        gid, _, kind = rest.partition(" ")
        with suppress(OSError):
            if kind == _ROCE_V2 and socket.inet_pton(socket.AF_INET6, gid) == wanted:
                return int(index)
    return None


def _own_address(other: str) -> str:
    """The address by which this machine sends to another one."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((other, 9))
            address: str = probe.getsockname()[0]
    except OSError as error:
        raise UnhealthyError(f"no route from here to {other}: {error.strerror}") from None
    return address


def _networks(addresses: Sequence[str]) -> list[str]:
    """These IPv4 addresses as networks of one host each; none where some are names."""
    try:
        for address in addresses:
            socket.inet_pton(socket.AF_INET, address)
    except OSError:
        return []
    return [f"{address}/32" for address in dict.fromkeys(addresses)]
