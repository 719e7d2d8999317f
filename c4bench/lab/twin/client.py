#!/usr/bin/python3 -IS
"""A SONiC command: hands its words, its directory and its open files to the switch's command server.

This file is copied to a switch under each command's name; it must run with the standard library alone.
"""

import os
import socket
import sys

COMMANDS = "/run/sonic/commands.sock"


def main() -> int:
    """Run the command there and return its exit code."""
    words = [
        sys.argv[0].rpartition("/")[2],
        os.getcwd(),  # noqa: PTH109  (pathlib takes long to load)
        *sys.argv[1:],
    ]
    with socket.socket(socket.AF_UNIX) as server:
        try:
            server.connect(COMMANDS)
        except OSError as error:
            sys.stderr.write(f"{words[0]}: the switch is not ready: {error.strerror}\n")
            return 1
        socket.send_fds(server, ["\0".join(words).encode()], [0, 1, 2])
        server.shutdown(socket.SHUT_WR)
        answer = server.recv(1)
    return answer[0] if answer else 1


if __name__ == "__main__":
    sys.exit(main())
