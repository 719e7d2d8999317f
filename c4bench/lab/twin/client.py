#!/usr/bin/python3 -IS
"""A SONiC command: hands its words, its directory and its open files to the switch's command server.

This file is copied to a switch under each command's name; it must run with the standard library alone. A fault takes
dozens of commands, and most of what one costs is the start of Python, which `socket` and `pathlib` would double.
"""

import os
import sys
from _socket import AF_UNIX, SCM_RIGHTS, SHUT_WR, SOL_SOCKET, socket

COMMANDS = "/run/sonic/commands.sock"


def main() -> int:
    """Run the command there and return its exit code."""
    words = [sys.argv[0].rpartition("/")[2], os.getcwd(), *sys.argv[1:]]  # noqa: PTH109
    files = b"".join(number.to_bytes(4, sys.byteorder) for number in (0, 1, 2))
    server = socket(AF_UNIX)
    try:
        server.connect(COMMANDS)
    except OSError as error:
        sys.stderr.write(f"{words[0]}: the switch is not ready: {error.strerror}\n")
        return 1
    server.sendmsg(["\0".join(words).encode()], [(SOL_SOCKET, SCM_RIGHTS, files)])
    server.shutdown(SHUT_WR)
    answer = server.recv(1)
    return answer[0] if answer else 1


if __name__ == "__main__":
    sys.exit(main())
