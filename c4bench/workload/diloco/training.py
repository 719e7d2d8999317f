"""The inner and outer steps of one worker, in order (arXiv 2501.18512, algorithm 2)."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from c4bench.workload.diloco.replica import Replica
from c4bench.workload.diloco.schedule import Schedule, Turn
from c4bench.workload.models.protocol import Vector


@dataclass(frozen=True)
class Outcome:
    """What came of a turn: whether there was an outer step, and which fragments another site has brought up to date.

    `following` is the number of the site's next turn: a site that came too late goes on with a later one.
    """

    stepped: bool
    adopted: tuple[int, ...]
    following: int


class Exchange(Protocol):
    """Exchanges outer gradients with other sites, and takes the outer steps. One turn at a time."""

    def send(self, turn: Turn, gradient: Vector) -> None:
        """Begin a turn with this site's outer gradient; returns at once."""

    def receive(self) -> Outcome:
        """Wait for the end of the turn."""


class Step(NamedTuple):
    """A finished inner step, counted from 1, and the mean loss of the site's batches."""

    number: int
    loss: float


def train(
    replica: Replica, inner_step: Callable[[int], float], plan: Schedule, exchange: Exchange, steps: range
) -> Iterator[Step]:
    """Train after `steps.start` inner steps until there are `steps.stop`. No turn may be under way at the start.

    A site that came too late for a turn leaves out the inner steps that the others are ahead.
    """
    turn = plan.turn(plan.first_after(steps.start))
    number = steps.start
    while number < steps.stop:
        number += 1
        step, late = Step(number, inner_step(number)), False
        if number == turn.sent:
            exchange.send(turn, replica.outer_gradient(turn.fragment))
        if number == turn.received:
            outcome = exchange.receive()
            if outcome.stepped:
                replica.merge(turn.fragment)
            replica.adopt(outcome.adopted)
            late = outcome.following != turn.number + 1
            turn = plan.turn(outcome.following)
        yield step
        if late:
            number = turn.sent - 1
