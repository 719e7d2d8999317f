"""The keeper of the lab, its process 1 from the overlay on: build the fabric, boot the hosts, run the command, end."""

import socket
import sys
import termios
from pathlib import Path

import msgspec

from c4bench.errors import C4Error
from c4bench.lab.guest.end import end, failed
from c4bench.lab.guest.supervisor import Supervisor
from c4bench.lab.spec import LabSpec


def main(spec_path: str) -> None:
    """Run the lab described in `spec_path` and end the kernel. Never returns."""
    try:
        spec = msgspec.json.decode(Path(spec_path).read_bytes(), type=LabSpec)
        socket.sethostname("c4lab")
        if not spec.interactive:
            pass_bytes_unchanged(1)
        result = Supervisor(spec).run()
    except (C4Error, OSError) as error:
        result = failed(error)
    end(Path(spec_path).parent, result)


def pass_bytes_unchanged(console: int) -> None:
    """The console is a terminal to the kernel and a pipe to us: no carriage returns before newlines."""
    attributes = termios.tcgetattr(console)
    attributes[1] &= ~termios.OPOST
    termios.tcsetattr(console, termios.TCSANOW, attributes)


if __name__ == "__main__":
    main(sys.argv[1])
