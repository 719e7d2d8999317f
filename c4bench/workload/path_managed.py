"""A communicator that goes where C4P says: between two operations it takes over new source ports and weights."""

import select
from collections import defaultdict
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import msgspec

from c4bench.collective.communicator import Communicator
from c4bench.collective.group import Group
from c4bench.errors import UnhealthyError
from c4bench.model.fabric import Flow
from c4bench.model.qp_address import QpAddress, parse
from c4bench.verbs.errors import VerbsError
from c4bench.wire.messages import FollowGuidance, Guidance
from c4bench.wire.rank import RankLink

P = ParamSpec("P")
T = TypeVar("T")


class PathGuidance(Protocol):
    """Where word of C4P comes from; `routed` are the flows that asked for a path, by id, with the ports they got."""

    job: str
    routed: dict[str, tuple[Flow, int]]

    def listen(self) -> RankLink:
        """A new line to the agent."""


class _Held(msgspec.Struct):
    """A flow of this communicator: which QP carries it, from which port, and what share of its connection's load."""

    flow: Flow
    group: Group
    seat: QpAddress
    port: int
    weight: float


def _heeding(method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T]:
    """The same operation, after what C4P has said in the meantime has been done."""

    def call(self: "PathManagedCommunicator", /, *args: P.args, **kwargs: P.kwargs) -> T:
        self.heed()
        return method(self, *args, **kwargs)

    call.__name__, call.__doc__ = method.__name__, method.__doc__
    return call


class PathManagedCommunicator(Communicator):
    """A Communicator whose planned connections C4P moves and weighs while it runs; the program does nothing for it.

    Every rank steers its own sending ends between its own operations, when nothing of them is in flight. Without a
    master everything stays as it is.
    """

    _guide: PathGuidance | None = None
    _question: RankLink | None = None
    # How many flows the open question is about.
    _asked = 0

    def follow(self, guide: PathGuidance) -> None:
        """Go where this guide says from now on."""
        self._guide = guide
        self._held: dict[str, _Held] = {}

    def heed(self) -> None:
        """Do what C4P has said since the last operation. Never waits."""
        if self._guide is None:
            return
        groups = (self._group, *self._links.values())
        if (routed := sum(len(group.site.routed) for group in groups)) != self._asked:
            self._asked = routed
            self._hold(groups, self._guide)
            self._ask({})
        if self._question is None or not _readable(self._question):
            return
        try:
            steering = self._question.answer(Guidance)
        except (UnhealthyError, OSError):
            self._lose()
        else:
            self._ask(self._obey(steering))

    def _hold(self, groups: tuple[Group, ...], guide: PathGuidance) -> None:
        for group in groups:
            for name in group.site.routed:
                flow, port = guide.routed[name]
                place = parse(flow)
                assert place
                self._held.setdefault(name, _Held(flow, group, place, port, 1 / self.options.qps))

    def _ask(self, refused: dict[str, str]) -> None:
        """Say where every flow is now, and listen."""
        assert self._guide
        self._hang_up()
        held = self._held.values()
        question = FollowGuidance(
            self._guide.job,
            tuple(one.flow for one in held),
            tuple(one.port for one in held),
            tuple(one.weight for one in held),
            refused,
        )
        try:
            self._question = self._guide.listen()
            self._question.ask("follow", question)
        except OSError:
            self._lose()

    def _obey(self, steering: Guidance) -> dict[str, str]:
        """Move and weigh; returns the flows that would not move, and why."""
        refused: dict[str, str] = {}
        for name, port in steering.ports.items():
            one = self._held[name]
            try:
                one.group.outlet(one.seat.peer, one.seat.channel).move(one.seat.qp, port)
                one.port = port
            except VerbsError as error:
                refused[name] = str(error)
        for name, weight in steering.weights.items():
            self._held[name].weight = weight
        self._weigh({self._connection(self._held[name]) for name in steering.weights})
        return refused

    def _weigh(self, connections: set[tuple[str, int, int]]) -> None:
        shares: dict[tuple[str, int, int], list[_Held]] = defaultdict(list)
        for one in self._held.values():
            shares[self._connection(one)].append(one)
        for connection in sorted(connections):
            ways = sorted(shares[connection], key=lambda one: one.seat)
            ways[0].group.outlet(*connection[1:]).weigh([one.weight for one in ways])

    def _connection(self, one: _Held) -> tuple[str, int, int]:
        return one.seat.comm, one.seat.peer, one.seat.channel

    def split(self, color: int | None, key: int = 0) -> "Communicator | None":
        """As a Communicator does; the new one goes where C4P says, too."""
        self.heed()
        made = super().split(color, key)
        if self._guide is not None and isinstance(made, PathManagedCommunicator):
            made.follow(self._guide)
        return made

    def close(self) -> None:
        """Release connections, memory and devices. May be called again, and after an error."""
        self._hang_up()
        super().close()

    def _lose(self) -> None:
        """Nobody answers: everything stays as it is, and the next operation asks again."""
        self._hang_up()
        self._asked = 0

    def _hang_up(self) -> None:
        if self._question is not None:
            self._question.close()
            self._question = None

    all_reduce = _heeding(Communicator.all_reduce)
    reduce_scatter = _heeding(Communicator.reduce_scatter)
    all_gather = _heeding(Communicator.all_gather)
    broadcast = _heeding(Communicator.broadcast)
    reduce = _heeding(Communicator.reduce)
    all_to_all = _heeding(Communicator.all_to_all)
    send = _heeding(Communicator.send)
    recv = _heeding(Communicator.recv)
    barrier = _heeding(Communicator.barrier)


def _readable(link: RankLink) -> bool:
    poll = select.poll()
    poll.register(link.fileno(), select.POLLIN)
    return bool(poll.poll(0))
