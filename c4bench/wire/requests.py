"""The requests of ranks and agents to the master, in one table: type, answer, who asks, and for whom a request speaks.

From it are made what ranks send (`wire/rank.py`), what the agent relays, the handlers of the master, and its check that
a request speaks only for what is its sender's (`control/authorisation.py`).
"""

import math
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any

import msgspec

from c4bench.errors import UsageError
from c4bench.model.fabric import Flow
from c4bench.model.telemetry import Failure
from c4bench.wire.framing import CALL_BYTES_MAX, MESSAGE_BYTES_MAX
from c4bench.wire.messages import (
    Attached,
    AttachedMoves,
    AttachedPath,
    AttachedWord,
    ChooseQps,
    Empty,
    Exchange,
    Exchanged,
    Fail,
    FollowGuidance,
    Guidance,
    Hello,
    InboxBatch,
    Meet,
    NetworkLost,
    PollInbox,
    RasReport,
    RelayMessage,
    Release,
    Result,
    Route,
    Seated,
    Seats,
    Watch,
)
from c4bench.wire.window_codec import EncodedWindow

# The failure that a rank reports in another's name: no NIC of that one's host can be reached.
_OF_ANOTHER = "HOST_LOST"
_PORT_AT_MOST = 65535


class Relay(Enum):
    """How an agent passes on a request of a rank."""

    OWN = "it does not: the request is the agent's own"
    AT_ONCE = "once; it fails at once without a master"
    REPEATED = "again after each loss of the master, until there is an answer"
    WAITING = "as REPEATED; the rank waits until it closes its communicator, and the master is told when it does"


class Claims(msgspec.Struct, frozen=True):
    """For whom and about what a request speaks.

    `ranks` of the job must run on the sender's host; so must those that sit at `places` of the `seats`, or of the job
    where there are none. `others` are further places that must exist. `size` is how many places there are, None where
    the request does not say. `flows`, live ones by id, and the sources of `pairs` must be of the host's NICs, and
    the destinations of the job's. `names` are kept while the job runs. `host` is the sender itself.
    """

    job: str = ""
    host: str | None = None
    ranks: tuple[int, ...] = ()
    places: tuple[int, ...] = ()
    others: tuple[int, ...] = ()
    seats: Seats = ()
    size: int | None = None
    flows: tuple[Flow, ...] = ()
    live_flows: tuple[str, ...] = ()
    pairs: tuple[tuple[str, str], ...] = ()
    names: tuple[str, ...] = ()


class Request(msgspec.Struct, frozen=True):
    """A row of the table; `claims` raises UsageError for a request that contradicts itself.

    What is `late`, of a job that has ended, is dropped and not refused.
    """

    name: str
    body: Any
    answer: Any
    relay: Relay
    claims: Callable[[Any], Claims]
    most_bytes: int = CALL_BYTES_MAX
    late: bool = False


def seat_of(place: int, seats: Seats) -> int:
    """The job's rank at a place of these seats, which is there."""
    return seats[place] if seats else place


def _fail(request: Fail) -> Claims:
    failure = request.failure
    sender = failure.rank if request.sender < 0 else request.sender
    if failure.rank != sender and (failure.status != _OF_ANOTHER or failure.peer != failure.rank):
        raise UsageError(f"rank {sender} reports a failure of rank {failure.rank}; a rank reports its own")
    others = (failure.rank, *((failure.peer,) if failure.peer >= 0 else ()))
    return Claims(request.job, places=(sender,), others=others, seats=request.seats, names=(request.comm,))


def _lost(request: NetworkLost) -> Claims:
    loss = request.loss
    names = [component.name for component in (loss.component, *loss.alternatives)]
    return Claims(request.job, places=(loss.rank,), seats=request.seats, names=(request.comm, *names))


def _exchange(request: Exchange) -> Claims:
    names = request.comm, request.key
    return Claims(request.job, places=(request.rank,), seats=request.seats, size=request.size, names=names)


def _word(request: RelayMessage) -> Claims:
    others = (request.to,) if request.to >= 0 else ()
    return Claims(request.job, places=(request.sender,), others=others, seats=request.seats, names=(request.comm,))


def _follow(request: FollowGuidance) -> Claims:
    known = {flow.id for flow in request.flows}
    if not len(known) == len(request.flows) == len(request.ports) == len(request.weights):
        raise UsageError("each flow has an id, a port and a weight of its own")
    if not known.issuperset(request.refused):
        raise UsageError("refused flows are not among those that the request is about")
    _check_range("port", request.ports, _PORT_AT_MOST)
    _check_range("weight", request.weights, 1.0)
    return Claims(request.job, flows=request.flows)


def _check_range(what: str, values: Iterable[float], most: float) -> None:
    wrong = next((value for value in values if not (math.isfinite(value) and 0 <= value <= most)), None)
    if wrong is not None:
        raise UsageError(f"{wrong!r} is no {what} of a flow; it is from 0 to {most:g}")


REQUESTS = (
    Request("hello", Hello, Empty, Relay.OWN, lambda it: Claims(host=it.host), most_bytes=MESSAGE_BYTES_MAX),
    Request("window", EncodedWindow, None, Relay.OWN, lambda it: Claims(host=it.host), most_bytes=MESSAGE_BYTES_MAX),
    Request("ras", RasReport, Empty, Relay.OWN, lambda _: Claims(), most_bytes=MESSAGE_BYTES_MAX),
    Request("attached", Attached, Seated, Relay.OWN, lambda _: Claims()),
    Request("attached-path", AttachedPath, int, Relay.OWN, lambda _: Claims()),
    Request("attached-moves", AttachedMoves, dict[int, int], Relay.OWN, lambda _: Claims()),
    Request("attached-word", AttachedWord, None, Relay.OWN, lambda _: Claims()),
    Request("exchange", Exchange, Exchanged, Relay.REPEATED, _exchange),
    Request("meet", Meet, Empty, Relay.REPEATED, lambda it: Claims(it.job, ranks=(it.rank,))),
    Request("fail", Fail, Empty, Relay.REPEATED, _fail),
    Request(
        "lost",
        NetworkLost,
        Empty,
        Relay.REPEATED,
        _lost,
    ),
    Request("watch", Watch, Failure, Relay.WAITING, lambda it: Claims(it.job, seats=it.seats, names=(it.comm,))),
    Request("word", RelayMessage, Empty, Relay.REPEATED, _word),
    Request(
        "news",
        PollInbox,
        InboxBatch,
        Relay.WAITING,
        lambda it: Claims(it.job, places=(it.rank,), seats=it.seats, names=(it.comm,)),
    ),
    Request("qps", ChooseQps, int, Relay.AT_ONCE, lambda it: Claims(it.job, pairs=it.pairs)),
    Request("route", Route, list[int], Relay.AT_ONCE, lambda it: Claims(it.job, flows=it.flows)),
    Request("release", Release, Empty, Relay.REPEATED, lambda it: Claims(it.job, live_flows=it.flows)),
    Request("follow", FollowGuidance, Guidance, Relay.WAITING, _follow),
    Request("result", Result, Empty, Relay.REPEATED, lambda it: Claims(it.job, ranks=(it.rank,)), late=True),
)
OF_RANKS = {request.name: request for request in REQUESTS if request.relay is not Relay.OWN}
OF_AGENTS = {request.name: request for request in REQUESTS if request.relay is Relay.OWN}
_OF_BODIES = {request.body: request for request in OF_RANKS.values()}


def request_of(body: object) -> Request:
    """The row of a rank's request, which is of this type."""
    return _OF_BODIES[type(body)]
