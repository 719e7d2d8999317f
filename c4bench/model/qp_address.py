"""What the id of a communicator's flow says of the QP that carries it: `JOB/COMM/RANK>PEER/CHANNEL.QP`."""

from typing import NamedTuple

from c4bench.model.fabric import Flow


class QpAddress(NamedTuple):
    """A QP's place: the `qp`-th of the connection from `rank` to `peer` of `comm`, on a channel."""

    comm: str
    rank: int
    peer: int
    channel: int
    qp: int


def parse(flow: Flow) -> QpAddress | None:
    """Where a flow belongs; None for an id of another form."""
    parts = flow.id.removeprefix(f"{flow.job}/").rsplit("/", 2)
    if len(parts) != 3:
        return None
    numbers = [*parts[1].split(">"), *parts[2].split(".")]
    if len(numbers) != 4 or not all(number.isdecimal() for number in numbers):
        return None
    return QpAddress(parts[0], *map(int, numbers))
