"""The commands of a SONiC switch: one table, from the words that a user types to a function.

The programs on the switch's PATH are `client.py` under each command's name. They hand their words and open files to the
server here, which runs the function in a process of its own: Python would take longer to start than to answer.
"""

import os
import socket
import struct
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

from c4bench.lab.topology import EcnMarking
from c4bench.lab.twin.client import COMMANDS
from c4bench.lab.twin.ports import Layout, SwitchPort, number_of
from c4bench.lab.twin.redis import Redis, RedisError

_LARGEST_REQUEST = 1 << 17
_CREDENTIALS = struct.Struct("3i")


class Refused(Exception):  # noqa: N818  (it ends a command, as a program would end itself)
    """A command ends with this message and exit code."""

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message)
        self.code = code


class Call:
    """One call of a command: its name, its words after that, who called it where, and the switch."""

    def __init__(self, name: str, words: Sequence[str], user: int, layout: Layout, ecn: EcnMarking | None) -> None:
        self.name, self.words, self.user, self.layout, self.ecn = name, list(words), user, layout, ecn
        self._databases: dict[str, Redis] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        for database in self._databases.values():
            database.close()

    def database(self, name: str) -> Redis:
        """A connection to one of SONiC's databases, which stays open until the call ends."""
        if name not in self._databases:
            self._databases[name] = Redis(name)
        return self._databases[name]

    @property
    def config(self) -> Redis:
        """CONFIG_DB."""
        return self.database("CONFIG_DB")

    def port(self, name: str) -> SwitchPort:
        """The port of that name or alias. Raises Refused."""
        for port in self.layout.ports:
            if name in (port.name, port.alias):
                return port
        raise self.wrong("Interface name is invalid. Please enter a valid interface name!!")

    def ports(self, names: str) -> list[SwitchPort]:
        """The ports of a list such as `Ethernet0,Ethernet8-12`; all ports for "". Raises Refused."""
        if not names:
            return list(self.layout.ports)
        found = []
        for name in names.split(","):
            first, dash, last = name.partition("-")
            if not dash:
                found.append(self.port(first))
                continue
            lowest, highest = number_of(first), number_of(f"Ethernet{last.removeprefix('Ethernet')}")
            inside = [port for port in self.layout.ports if lowest <= number_of(port.name) <= highest]
            found += inside or [self.port(name)]
        return found

    def parse(self, *wanted: str, options: Mapping[str, str] | None = None) -> dict[str, str]:
        """The words by name: `NAME` must be there, `[NAME]` may, `NAME...` takes all that are left, with spaces.

        `options` are names by option; one that ends with `!` takes no value and is then "yes". What was not given is
        missing. Raises Refused.
        """
        found: dict[str, str] = {}
        left = list(wanted)
        words = iter(self.words)
        for word in words:
            option, equals, value = word.partition("=")
            if options and option in options:
                name = options[option]
                if not name.endswith("!"):
                    value = value if equals else next(words, "")
                    if not value:
                        raise self.wrong(f"Option '{option}' requires an argument.")
                found[name.removesuffix("!")] = "yes" if name.endswith("!") else value
            elif word.startswith("-") and len(word) > 1 and not left:
                raise self.wrong(f"No such option: {word}")
            elif not left:
                raise self.wrong(f"Got unexpected extra argument ({word})")
            elif left[0].endswith("..."):
                name = left[0].strip("[].")
                found[name] = f"{found[name]} {word}" if name in found else word
            else:
                found[left.pop(0).strip("[]")] = word
        missing = next(
            (name.strip(".") for name in left if not name.startswith("[") and name.strip(".") not in found), ""
        )
        if missing:
            raise self.wrong(f"Missing argument '{missing}'.")
        return found

    def write(self, text: str) -> None:
        """Print a text and a newline."""
        sys.stdout.write(f"{text}\n")

    def wrong(self, problem: str) -> Refused:
        """What a wrong call ends with."""
        return Refused(f'Usage: {self.name} [OPTIONS] ...\nTry "{self.name} -h" for help.\n\nError: {problem}', 2)

    def require_root(self) -> None:
        """Raises Refused for anybody but root."""
        if self.user:
            raise Refused("Root privileges are required for this operation")


Function = Callable[[Call], None]
TABLE: dict[tuple[str, ...], Function] = {}


def command(*lines: str) -> Callable[[Function], Function]:
    """Enter a function into the table under these words."""

    def enter(function: Function) -> Function:
        for line in lines:
            TABLE[tuple(line.split())] = function
        return function

    return enter


def programs() -> list[str]:
    """The names of all programs."""
    return sorted({words[0] for words in TABLE})


def run(words: Sequence[str], user: int, layout: Layout, ecn: EcnMarking | None) -> int:
    """Run a command and return its exit code."""
    try:
        function, length = _find(words)
        with Call(" ".join(words[:length]), words[length:], user, layout, ecn) as call:
            function(call)
        sys.stdout.flush()
    except Refused as refused:
        sys.stdout.flush()
        sys.stderr.write(f"{refused}\n")
        return refused.code
    except BrokenPipeError:
        return 1
    except (OSError, RedisError, ValueError) as error:
        traceback.print_exc()
        sys.stderr.write(f"{words[0]}: {error}\n")
        return 1
    return 0


def _find(words: Sequence[str]) -> tuple[Function, int]:
    """The function of the longest known beginning, and how many words that has. Raises Refused."""
    for length in range(len(words), 0, -1):
        if function := TABLE.get(tuple(words[:length])):
            return function, length
    known = next(n for n in range(len(words), -1, -1) if any(key[:n] == tuple(words[:n]) for key in TABLE))
    said = " ".join(words[:known])
    if known == len(words):
        below = sorted({key[known] for key in TABLE if key[:known] == tuple(words)})
        raise Refused(f"Usage: {said} [OPTIONS] COMMAND [ARGS]...\n\nCommands:\n  " + "\n  ".join(below), 2)
    raise Refused(f'Usage: {said} [OPTIONS] COMMAND [ARGS]...\n\nError: No such command "{words[known]}".', 2)


def listener() -> socket.socket:
    """The socket at which the programs on the switch ask. Anybody may: what needs root asks the kernel who calls."""
    Path(COMMANDS).parent.mkdir(exist_ok=True)
    opened = socket.socket(socket.AF_UNIX)
    opened.bind(COMMANDS)
    Path(COMMANDS).chmod(0o666)
    opened.listen()
    return opened


def serve(connection: socket.socket, layout: Layout, ecn: EcnMarking | None) -> None:
    """Answer one call, in a child process that its parent need not wait for."""
    if os.fork():
        return
    code = 1
    try:
        user = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))[1]
        data, descriptors, _, _ = socket.recv_fds(connection, _LARGEST_REQUEST, 3)
        while more := connection.recv(_LARGEST_REQUEST):
            data += more
        for number, descriptor in enumerate(descriptors):
            os.dup2(descriptor, number)
            os.close(descriptor)
        name, folder, *words = data.decode().split("\0")
        os.chdir(folder)
        code = run([name, *words], user, layout, ecn)
    finally:
        connection.sendall(bytes([code]))
        os._exit(0)
