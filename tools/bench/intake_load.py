"""The windows that replayed agents send: those of a simulated job of eight ranks a host, encoded beforehand.

A window has what a real agent's has: ten operations of each rank, and both ends of its connections with the sums that
one-way delays are taken from. The first one of a host also has all its names.
"""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np

from c4bench.model.fabric import Flow, Nic
from c4bench.model.qp_address import QpAddress
from c4bench.model.step import RankGroup, StepOp
from c4bench.model.telemetry import Member
from c4bench.model.window import Window
from c4bench.model.window_columns import ARRIVAL_ROW, CONN_ROW
from c4bench.wire.messages import JobSpec, Note
from c4bench.wire.peer import encode
from c4bench.wire.window_codec import WindowEncoder
from tools.sim.job import simulate
from tools.sim.model import SimJob

RANKS_PER_HOST = 8
WINDOW_S = 0.1
JOB = "replay"
# Hosts of a data-parallel group: the number of hosts must be a multiple of it.
GROUP = 5
_RATE_BPS = 400e9
_SIZE_BYTES = 256 << 10
# With the time for communication each operation takes 10 ms: a hundred a second.
_COMPUTE_S = 0.0099
_STEP = (
    StepOp("all_to_all", _SIZE_BYTES, _COMPUTE_S, RankGroup("tensor", RANKS_PER_HOST)),
    StepOp("all_reduce", _SIZE_BYTES, _COMPUTE_S, RankGroup("data", GROUP, RANKS_PER_HOST)),
)
# Between messages, and from posting to arrival.
_APART_NS, _DELAY_NS = 1_000_000, 10_000


def host_names(hosts: int) -> list[str]:
    """The hosts' names, as the simulated job has them."""
    return [f"h{number}" for number in range(hosts)]


def job_spec(hosts: int, name: str = JOB) -> JobSpec:
    """The job that all agents run."""
    places = [(host, index) for host in host_names(hosts) for index in range(RANKS_PER_HOST)]
    members = tuple(Member(rank, host, (f"{host}/{index}",)) for rank, (host, index) in enumerate(places))
    nics = tuple(Nic(host, index, "", "", "", _RATE_BPS) for host, index in places)
    return JobSpec(name, "pulse", members, nics)


def windows(hosts: int, seconds: float, name: str = JOB) -> Iterator[tuple[Window, ...]]:
    """The windows of all hosts, round after round, for `seconds`; times begin at 0."""
    job = SimJob(
        hosts * RANKS_PER_HOST, _STEP, name, rate_bps=_RATE_BPS, ranks_per_host=RANKS_PER_HOST, window_s=WINDOW_S
    )
    for tick in simulate(job, duration_s=seconds):
        yield tuple(map(_as_sent, tick.windows))


def flows(window: Window) -> tuple[Flow, ...]:
    """The flows of a window's connections, as ranks ask for paths of them."""
    addresses = ((QpAddress(conn.comm, conn.rank, conn.peer, 0, conn.qp), conn) for conn in window.conns)
    return tuple(
        Flow(address.flow_id(JOB), JOB, conn.source, conn.destination, _RATE_BPS) for address, conn in addresses
    )


class Replay(msgspec.Struct, frozen=True):
    """What one agent replays: its flows, and its windows' ends (s) with their encoded messages."""

    host: str
    flows: tuple[Flow, ...]
    ends_s: tuple[float, ...]
    messages: tuple[bytes, ...]


def write_replays(folder: Path, hosts: int, seconds: float) -> int:
    """Write `HOST.replay` for each host into `folder`; return the mean size of a window in bytes."""
    ends_s: list[float] = []
    encoder = WindowEncoder()
    messages: dict[str, list[bytes]] = {host: [] for host in host_names(hosts)}
    asked: dict[str, tuple[Flow, ...]] = {}
    for tick in windows(hosts, seconds):
        ends_s.append(tick[0].end_s)
        for window in tick:
            messages[window.host].append(encode(Note("window", msgspec.Raw(encode(encoder.encode(window))))))
            asked[window.host] = flows(window)
    for host, sent in messages.items():
        (folder / f"{host}.replay").write_bytes(encode(Replay(host, asked[host], tuple(ends_s), tuple(sent))))
    sizes = [len(message) for sent in messages.values() for message in sent]
    return sum(sizes) // len(sizes)


def read_replay(folder: Path, host: str) -> Replay:
    """What `write_replays` has written for a host."""
    return msgspec.msgpack.decode((folder / f"{host}.replay").read_bytes(), type=Replay)


def _as_sent(window: Window) -> Window:
    """The window with the sums of its messages' times."""
    conns, arrivals = (
        np.frombuffer(window.conn_table, CONN_ROW).copy(),
        np.frombuffer(window.arrival_table, ARRIVAL_ROW).copy(),
    )
    for ends, delay_ns in ((conns, 0), (arrivals, _DELAY_NS)):
        messages = ends["messages"]
        ends["count"], ends["sum"] = messages, messages * (messages + 1) // 2 * _APART_NS + messages * delay_ns
    return msgspec.structs.replace(window, conn_table=conns.tobytes(), arrival_table=arrivals.tobytes())
