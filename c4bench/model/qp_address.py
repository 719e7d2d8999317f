"""The identity of a communicator's QP. On the wire and in files it is a flow's id: `JOB/COMM/RANK>PEER/CHANNEL.QP`."""

from typing import NamedTuple, Self

from c4bench.model.fabric import Flow


class ConnectionAddress(NamedTuple):
    """A connection of a communicator: from `rank` to `peer`, on a channel."""

    comm: str
    rank: int
    peer: int
    channel: int


class QpAddress(NamedTuple):
    """The `qp`-th QP of the connection from `rank` to `peer` of communicator `comm`, on a channel."""

    comm: str
    rank: int
    peer: int
    channel: int
    qp: int

    @classmethod
    def parse(cls, flow: Flow) -> Self | None:
        """The address in a flow's id; None for an id of another form."""
        parts = flow.id.removeprefix(f"{flow.job}/").rsplit("/", 2)
        if len(parts) != 3:
            return None
        numbers = [*parts[1].split(">"), *parts[2].split(".")]
        if len(numbers) != 4 or not all(number.isdecimal() for number in numbers):
            return None
        return cls(parts[0], *map(int, numbers))

    def flow_id(self, job: str) -> str:
        """The id of this QP's flow in a job."""
        return f"{job}/{self.comm}/{self.rank}>{self.peer}/{self.channel}.{self.qp}"

    @property
    def connection(self) -> ConnectionAddress:
        """The connection that the QP belongs to."""
        return ConnectionAddress(self.comm, self.rank, self.peer, self.channel)


def connection_key(flow: Flow) -> tuple[str, str, str]:
    """What the flows of one connection's QPs share: the id up to its last dot, and both NICs. Any id will do."""
    head, dot, _ = flow.id.rpartition(".")
    return head if dot else flow.id, flow.source, flow.destination
