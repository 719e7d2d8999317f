"""A real lldpd on hosts and switches of a lab whose switches have an operating system."""

import subprocess
from pathlib import Path

from c4bench import namespaces

ACCOUNT = "_lldpd:x:101:101::/run/lldpd:/usr/sbin/nologin\n"
_CLIENT = "usr/sbin/lldpcli"
_CONFIGURATION = "etc/lldpd.d"
_AGAIN_S = 1


def furnish(root: Path, client: str, *lines: str) -> None:
    """Put lldpd's settings into a root; `client` is a copy of lldpcli that everybody may run."""
    folder = root / _CONFIGURATION
    folder.mkdir(exist_ok=True)
    (folder / "lab.conf").write_text("".join(f"configure {line}\n" for line in lines))
    (root / "run/lldpd").mkdir()
    namespaces.bind(client, str(root / _CLIENT))


def start(interfaces: str, description: str = "") -> None:
    """Start it on interfaces that match, such as `Ethernet*`; without a description it finds its own.

    What it sends at its start is lost where the neighbour boots later, so it sends again when all have booted.
    """
    described = ("-S", description) if description else ()
    subprocess.Popen(["lldpd", "-d", "-I", interfaces, *described], close_fds=True)
    subprocess.Popen(["sh", "-c", f"sleep {_AGAIN_S}; exec lldpcli update"], stdout=subprocess.DEVNULL, close_fds=True)
