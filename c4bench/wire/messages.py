"""Messages of the protocol. Bodies are msgpack; unknown fields are ignored, so versions may differ by one."""

from typing import Annotated, Any

import msgspec

from c4bench.model.diagnosis import NetworkLoss
from c4bench.model.fabric import Flow, Host, Inside, Nic
from c4bench.model.steering import Policy
from c4bench.model.telemetry import Failure, Member

PORT = 7447
# How long somebody waits, seconds: a number, and not infinity.
Seconds = Annotated[float, msgspec.Meta(ge=0.0, le=1e7)]
# The job's rank of each rank of a communicator, or of another set of ranks that are numbered again. Empty: the numbers
# are the job's ranks. Those that give different seats are different communicators, whatever their names.
Seats = tuple[int, ...]


class Call(msgspec.Struct, frozen=True, tag="call"):
    """A request; the `Answer` has the same id."""

    id: int
    method: str
    body: msgspec.Raw


class Answer(msgspec.Struct, frozen=True, tag="answer"):
    """The reply to a `Call`: a body, or an error."""

    id: int
    body: msgspec.Raw = msgspec.Raw()
    error: str = ""


class Note(msgspec.Struct, frozen=True, tag="note"):
    """A notification without a reply."""

    method: str
    body: msgspec.Raw


Message = Call | Answer | Note


class Meeting(msgspec.Struct, frozen=True):
    """Ranks of several jobs, `size` in all, that wait for each other so that what they measure happens together.

    The test may be one of them. Jobs are in the same meeting if their operators give them the same name.
    """

    name: str
    size: int


class JobSpec(msgspec.Struct, frozen=True):
    """A job: a program of `c4bench.workload`, its ranks' places, and the program's own parameters.

    Where C4P shares the fabric by priority, a job of `share` 2 is given the room of twice its demand. Its ranks may
    wait for those of other jobs in its `meeting`. `inside` joins the ranks of a host that have a GPU each.
    """

    id: str
    program: str
    members: tuple[Member, ...]
    nics: tuple[Nic, ...]
    parameters: dict[str, Any] = {}
    seed: int = 0
    share: float = 1.0
    meeting: Meeting | None = None
    inside: Inside | msgspec.UnsetType = msgspec.UNSET


class StartRanks(msgspec.Struct, frozen=True):
    """Master to agent: start these ranks of the job."""

    job: JobSpec
    ranks: tuple[int, ...]


class Hello(msgspec.Struct, frozen=True):
    """An agent's first call: who it is, what it runs, which RDMA devices it can open ("" reason when it can).

    `jobs` are the ranks that live on its host, from before the line to the master was lost.
    """

    host: str
    version: str
    code: str
    rdma: str
    jobs: tuple[StartRanks, ...] = ()


class StopRanks(msgspec.Struct, frozen=True):
    """Master to agent: end every rank of the job."""

    job: str


class LaunchJob(msgspec.Struct, frozen=True):
    """Operator to master: start this job, and steer it by `policy` with `spares` to take the place of its hosts."""

    job: JobSpec
    policy: Policy = Policy()
    spares: tuple[Host, ...] = ()


class ReturnHost(msgspec.Struct, frozen=True):
    """Operator to master: put this repaired host back into service."""

    host: str


class QueryResults(msgspec.Struct, frozen=True):
    """Operator to master: the first `count` results of this kind of the job's present attempt; 0 for one a rank."""

    job: str
    kind: str
    timeout_s: Seconds
    count: int = 0


class LearnPaths(msgspec.Struct, frozen=True):
    """Operator to master: learn the paths between these hosts now, and return them as `PathKnowledge.to_json`."""

    hosts: tuple[str, ...]


class PathsJson(msgspec.Struct, frozen=True):
    """Known paths as JSON (see `c4p.knowledge.path_knowledge`)."""

    json: bytes


class Subscribe(msgspec.Struct, frozen=True):
    """Watcher to master: tell me every event, as notes, from the one with that number on; -1 for only those to come."""

    first: int = -1


class Exchange(msgspec.Struct, frozen=True):
    """Rank to master: all-gather `payload` with the `size` ranks that name the same job, communicator and key.

    `rank` is its number in the communicator; all give the same `seats`.
    """

    job: str
    comm: str
    key: str
    rank: int
    size: int
    payload: bytes
    timeout_s: Seconds
    seats: Seats = ()


class Exchanged(msgspec.Struct, frozen=True):
    """All payloads by rank; or the ranks that did not come in time; or the failure that ended it."""

    payloads: tuple[bytes, ...] = ()
    missing: tuple[int, ...] = ()
    failure: Failure | None = None


class Meet(msgspec.Struct, frozen=True):
    """Rank to master: answer when all members of my job's meeting have come to this moment."""

    job: str
    rank: int
    moment: str


class Watch(msgspec.Struct, frozen=True):
    """Rank to master: tell me, as a `Failure`, when a member of this communicator fails."""

    job: str
    comm: str
    seats: Seats = ()


class RelayMessage(msgspec.Struct, frozen=True):
    """Rank to master, as a note: bring `body` to rank `to` of this communicator, to all others of it where it is -1."""

    job: str
    comm: str
    sender: int
    to: int
    body: bytes
    seats: Seats = ()


class PollInbox(msgspec.Struct, frozen=True):
    """Rank to master: tell me, as a `InboxBatch`, what has been brought to `rank` beyond the first `after` words."""

    job: str
    comm: str
    rank: int
    after: int
    seats: Seats = ()


class InboxBatch(msgspec.Struct, frozen=True):
    """Words for a rank, in the order they came, and how many there have been in all."""

    bodies: tuple[bytes, ...]
    after: int


class Fail(msgspec.Struct, frozen=True):
    """Rank to master: I cannot go on with this communicator, or the rank in `failure` is lost.

    `sender` is the number of the rank that says so, -1 for the one in `failure`.
    """

    job: str
    comm: str
    failure: Failure
    sender: int = -1
    seats: Seats = ()


class NetworkLost(msgspec.Struct, frozen=True):
    """Rank to master: this communicator goes on without a part of the network."""

    job: str
    comm: str
    loss: NetworkLoss
    seats: Seats = ()


class Route(msgspec.Struct, frozen=True):
    """Rank to master: which source port should each of these flows use? (0: the fabric's own hashing).

    `qps` are the numbers of the queue pairs that their packets are for. They are only needed, and only sent, once the
    answer was ASK_QPS.
    """

    job: str
    flows: tuple[Flow, ...]
    qps: tuple[int, ...] | msgspec.UnsetType = msgspec.UNSET


class ChooseQps(msgspec.Struct, frozen=True):
    """Rank to master: how many QPs should connections between these pairs of NICs have? (one number for all)."""

    job: str
    pairs: tuple[tuple[str, str], ...]


class Release(msgspec.Struct, frozen=True):
    """Rank to master: these flows are gone."""

    job: str
    flows: tuple[str, ...]


class FollowGuidance(msgspec.Struct, frozen=True):
    """Rank to master: these are a communicator's flows; tell me, as a `Guidance`, when one should go elsewhere.

    `ports` and `weights` are where each flow is now and the share of its connection's load that it carries; `refused`
    are flows whose QP could not be moved, and why. `qps` are as in a `Route`.
    """

    job: str
    flows: tuple[Flow, ...]
    ports: tuple[int, ...]
    weights: tuple[float, ...]
    refused: dict[str, str] = {}
    qps: tuple[int, ...] | msgspec.UnsetType = msgspec.UNSET


class Guidance(msgspec.Struct, frozen=True):
    """Which source ports and weights flows should have from now on, by id; those left out stay as they are."""

    ports: dict[str, int] = {}
    weights: dict[str, float] = {}


class Result(msgspec.Struct, frozen=True):
    """Rank to master: something the program found out. `number` counts a rank's results: one told twice is one."""

    job: str
    rank: int
    body: dict[str, Any]
    number: int = 0


class Empty(msgspec.Struct, frozen=True):
    """Nothing to say."""


class AttachedRank(msgspec.Struct, frozen=True):
    """A process that nobody of us has started: what its launcher says of it, and whether it has `ended`.

    `job` is "", and `rank` None, where its launcher does not say.
    """

    pid: int
    job: str
    rank: int | None = None
    ended: bool = False


class Attached(msgspec.Struct, frozen=True):
    """Agent to master: all processes that are attached on its host, and the NICs there."""

    nics: tuple[Nic, ...]
    processes: tuple[AttachedRank, ...]


class Seated(msgspec.Struct, frozen=True):
    """The rank of each process that is followed, by PID; why others are not."""

    ranks: dict[int, int]
    refused: dict[int, str]


class AttachedPath(msgspec.Struct, frozen=True):
    """Agent to master: say which source port a queue pair of an attached process should use; 0 for its own.

    Its NICs are known by their addresses. The queue pair at the far end is only needed, and only sent, once the answer
    was ASK_QPS.
    """

    pid: int
    source: str
    destination: str
    qp: int
    remote_qp: int | msgspec.UnsetType = msgspec.UNSET


class AttachedMoves(msgspec.Struct, frozen=True):
    """Agent to master: queue pairs of an attached process and their ports; say, by place, when some should have others.

    `refused` are the places of those that could not be moved; those that are `gone` need no path any more.
    """

    paths: tuple[AttachedPath, ...]
    ports: tuple[int, ...]
    refused: tuple[int, ...] = ()
    gone: tuple[AttachedPath, ...] = ()


class AttachedWord(msgspec.Struct, frozen=True):
    """Agent to master and on to another agent: what the library at one end of a connection says to that at the other.

    An end is a queue pair, known by its NIC's address and its number.
    """

    source: str
    qp: int
    destination: str
    remote_qp: int
    word: Annotated[str, msgspec.Meta(max_length=160, pattern="^[0-9a-z -]*$")]


class RasReport(msgspec.Struct, frozen=True):
    """Agent to master, as a note: a report of RAS, compressed by gzip."""

    packed: bytes


class QueryProgress(msgspec.Struct, frozen=True):
    """Operator to master: what a job's ranks have reported in `attempt`, from report number `first` on.

    Answered once there is a new report, more than `ended` ranks have ended, another attempt runs, or after `timeout_s`.
    Of another attempt than the named one, everything is returned.
    """

    job: str
    attempt: str = ""
    first: int = 0
    ended: int = 0
    timeout_s: Seconds = 0.0


class Progress(msgspec.Struct, frozen=True):
    """The present attempt of a job: new reports in the order of arrival, and the exit codes of ranks that have ended.

    A negative code is a signal's number. `first` is the number of the next report; the oldest may no longer be kept.
    """

    attempt: str
    ranks: int
    reports: tuple[Result, ...]
    exits: dict[int, int]
    first: int = 0
