"""Ask a running user-mode kernel questions from outside (the UML management console, a datagram socket)."""

import os
import re
import socket
import struct
from pathlib import Path

_MAGIC = 0xCAFEBABE
_VERSION = 2
_REQUEST = struct.Struct("=III512s")
_REPLY = struct.Struct("=III")
_REPLY_BYTES = _REPLY.size + 512
_TIMEOUT_S = 2.0
_LAST_PID = re.compile(r"/\d+ (\d+)\s*$")


class Console:
    """The management console of the lab whose UML directory is `directory`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def proc(self, name: str) -> str:
        """The lab's `/proc/NAME`. Raises OSError when the kernel does not answer or has no such file."""
        # The socket's path can be longer than an address may be: go through the directory's descriptor.
        descriptor = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as client:
                client.bind("")  # an abstract address of the kernel's choice, to be answered at
                client.settimeout(_TIMEOUT_S)
                client.connect(f"/proc/self/fd/{descriptor}/mconsole")
                command = f"proc {name}".encode()
                client.send(_REQUEST.pack(_MAGIC, _VERSION, len(command), command))
                return _collect(client)
        finally:
            os.close(descriptor)

    def uptime_s(self) -> float:
        """Seconds on the lab's clock."""
        return float(self.proc("uptime").split()[0])

    def processes(self) -> list[str]:
        """One line a process: number, name, state, and what it waits for in the kernel."""
        last = _LAST_PID.search(self.proc("loadavg"))
        found = []
        for pid in range(1, int(last[1]) + 1 if last else 1):
            try:
                name, _, rest = self.proc(f"{pid}/stat").strip().partition(" (")[2].rpartition(") ")
                waiting = self.proc(f"{pid}/wchan").strip() or "0"
            except OSError:
                continue
            found.append(f"{pid:>6} {name:<16} {rest.split()[0]} {'running' if waiting == '0' else waiting}")
        return found


def _collect(client: socket.socket) -> str:
    parts = []
    more = 1
    while more:
        reply = client.recv(_REPLY_BYTES)
        failed, more, length = _REPLY.unpack_from(reply)
        parts.append(reply[_REPLY.size :][:length].rstrip(b"\0").decode(errors="replace"))
        if failed:
            raise OSError("".join(parts).strip())
    return "".join(parts)
