"""Check a newly built kernel in a lab of two hosts, and write the report to `FILE`.

    python -m c4bench.lab.guest.selfcheck FILE

It draws random numbers for longer than Linux takes to mix gathered events into its entropy. One host also writes into
the other's memory over RDMA, timed on the lab's clock. Two boots of one seed must write the same bytes.
"""

import os
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec

from c4bench import inventory, remote
from c4bench.errors import C4Error, UnhealthyError
from c4bench.inventory import Inventory
from c4bench.lab.spec import INVENTORY, Report
from c4bench.model.fabric import Host

_DRAWS = 20  # a second apart: Linux mixes after 4, 8 and 16 s
_DRAW_BYTES = 8
_LENGTH = 4 << 20
_TIMES = (1, 5)  # writes, one after the other; the difference has no start and no command in it
_ANSWER_WITHIN_S = 30.0


class _End:
    """A host's NIC under remote control (`c4bench.verbs.endpoint_console`)."""

    def __init__(self, session: remote.Session) -> None:
        self._session = session

    def __call__(self, do: str, **arguments: object) -> Any:  # noqa: ANN401  (each command has its own answer)
        self._session.write_line(msgspec.json.encode({"do": do} | arguments).decode())
        answer = msgspec.json.decode(self._session.read_line(_ANSWER_WITHIN_S))
        if "error" in answer:
            raise UnhealthyError(f"{do}: {answer['error']}")
        return answer["answer"]


def main(path: Path) -> None:
    """Run the check and write the report."""
    drawn = []
    for _ in range(_DRAWS):
        time.sleep(1.0)
        drawn.append(os.urandom(_DRAW_BYTES).hex())
    goodput_bps = _transfer(inventory.load(Path(INVENTORY)))
    path.write_bytes(msgspec.json.encode(Report(drawn, goodput_bps, time.monotonic_ns())))


def _transfer(lab: Inventory) -> float:
    """Payload that the first host writes into the last one's memory, bit/s."""
    hosts = [host for host in lab.hosts if host.nics]
    with ExitStack() as opened:
        near, far = (_open(lab, host, opened) for host in (hosts[0], hosts[-1]))
        here, there = (end("open", length=_LENGTH) for end in (near, far))
        far("connect", end=here)
        near("connect", end=there)
        took_s = [_timed(near, times) for times in _TIMES]
    few, many = _TIMES
    return 8 * _LENGTH * (many - few) / (took_s[1] - took_s[0])


def _open(lab: Inventory, host: Host, opened: ExitStack) -> _End:
    access = lab.access[host.name]
    connection = opened.enter_context(remote.connect(host.name, access))
    nic = msgspec.json.encode(host.nics[0]).decode()
    session = connection.start([access.python, "-m", "c4bench.verbs.endpoint_console", nic])
    opened.callback(session.close)
    return _End(session)


def _timed(end: _End, times: int) -> float:
    begin_s = time.monotonic()
    status = end("write", times=times)
    if status:
        raise UnhealthyError(f"an RDMA write failed: {status}")
    return time.monotonic() - begin_s


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except C4Error as error:
        sys.exit(f"c4bench: {error}")
