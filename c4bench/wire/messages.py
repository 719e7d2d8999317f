"""What is said on the wire. Bodies are msgpack; unknown fields are ignored, so that versions can differ by one."""

from typing import Any

import msgspec

from c4bench.model.fabric import Flow, Nic
from c4bench.model.telemetry import Failure, Member

PORT = 7447


class Call(msgspec.Struct, frozen=True, tag="call"):
    """A question that wants an `Answer` with the same id."""

    id: int
    method: str
    body: msgspec.Raw


class Answer(msgspec.Struct, frozen=True, tag="answer"):
    """The body asked for, or the reason there is none."""

    id: int
    body: msgspec.Raw = msgspec.Raw()
    error: str = ""


class Note(msgspec.Struct, frozen=True, tag="note"):
    """Something told, with no answer wanted."""

    method: str
    body: msgspec.Raw


Message = Call | Answer | Note


class Hello(msgspec.Struct, frozen=True):
    """An agent's first call: who it is, what it runs, which RDMA devices it can open ("" reason when it can)."""

    host: str
    version: str
    code: str
    rdma: str


class JobSpec(msgspec.Struct, frozen=True):
    """A job: a program of `c4bench.workload`, its ranks' places, and the program's own parameters."""

    id: str
    program: str
    members: tuple[Member, ...]
    nics: tuple[Nic, ...]
    parameters: dict[str, Any] = {}
    seed: int = 0


class Start(msgspec.Struct, frozen=True):
    """Master to agent: start these ranks of the job."""

    job: JobSpec
    ranks: tuple[int, ...]


class Stop(msgspec.Struct, frozen=True):
    """Master to agent: end every rank of the job."""

    job: str


class Exchange(msgspec.Struct, frozen=True):
    """Rank to master: all-gather `payload` with the `size` ranks that name the same job, communicator and key."""

    job: str
    comm: str
    key: str
    rank: int
    size: int
    payload: bytes
    timeout_s: float


class Exchanged(msgspec.Struct, frozen=True):
    """All payloads by rank; or the ranks that did not come in time; or the failure that ended it."""

    payloads: tuple[bytes, ...] = ()
    missing: tuple[int, ...] = ()
    failure: Failure | None = None


class Watch(msgspec.Struct, frozen=True):
    """Rank to master: tell me, as a `Failure`, when a member of this communicator fails."""

    job: str
    comm: str


class Word(msgspec.Struct, frozen=True):
    """Rank to master, as a note: bring `body` to rank `to` of this communicator, to all others of it where it is -1."""

    job: str
    comm: str
    sender: int
    to: int
    body: bytes


class News(msgspec.Struct, frozen=True):
    """Rank to master: tell me, as a `Told`, what has been brought to `rank` beyond the first `after` words."""

    job: str
    comm: str
    rank: int
    after: int


class Told(msgspec.Struct, frozen=True):
    """Words for a rank, in the order they came, and how many there have been in all."""

    bodies: tuple[bytes, ...]
    after: int


class Fail(msgspec.Struct, frozen=True):
    """Rank to master: I cannot go on with this communicator."""

    job: str
    comm: str
    failure: Failure


class Route(msgspec.Struct, frozen=True):
    """Rank to master: which source port should each of these flows use? (0: the fabric's own hashing)."""

    job: str
    flows: tuple[Flow, ...]


class Release(msgspec.Struct, frozen=True):
    """Rank to master: these flows are gone."""

    job: str
    flows: tuple[str, ...]


class Result(msgspec.Struct, frozen=True):
    """Rank to master: something the program found out."""

    job: str
    rank: int
    body: dict[str, Any]


class ProbeRequest(msgspec.Struct, frozen=True):
    """Master to agent: trace these source ports from this NIC to that address."""

    nic: int
    destination: str
    source_ports: tuple[int, ...]
    max_hops: int
    timeout_s: float


class ProbeAnswer(msgspec.Struct, frozen=True):
    """Hops by source port, "" for a hop that stayed silent."""

    hops: dict[int, tuple[str, ...]]


class Empty(msgspec.Struct, frozen=True):
    """Nothing to say."""
