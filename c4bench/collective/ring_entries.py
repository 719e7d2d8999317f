"""The constant entries of a telemetry file, in msgpack: its owner, its communicators and their connections."""

import msgspec

from c4bench.model.telemetry import CommRecord


class Owner(msgspec.Struct, frozen=True):
    """The process a file belongs to."""

    job: str
    rank: int
    pid: int


class CommEntry(msgspec.Struct, frozen=True):
    """A communicator, and the process's rank in it."""

    rank: int
    record: CommRecord


class ConnName(msgspec.Struct, frozen=True):
    """The constant part of a QP's record, at either end. `comm` is the communicator's index in the file.

    `source` and `destination` are NICs, in the direction of the data; `peer` is the rank at the other end, `qp` the
    sending end's QP.
    """

    comm: int
    peer: int
    source: str
    destination: str
    qp: int
