"""What ranks tell each other: where their ends are when they connect, and grants while they work."""

import struct
from typing import NamedTuple

import msgspec

from c4bench.verbs.transport import Remote

KINDS = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "reduce", "send", "barrier")
REDUCTIONS = ("", "sum", "min", "max", "avg")
DTYPES = ("", "float32", "float64", "int32", "int64", "float16", "bfloat16", "int8", "uint8", "bool")
_GRANT = struct.Struct("<IIQIBBBHQ")
GRANT_BYTES = 64
MAILBOX_SLOTS = 16
MAILBOX_BYTES = GRANT_BYTES * MAILBOX_SLOTS


class Signature(NamedTuple):
    """What every rank must agree on in an operation."""

    kind: str
    dtype: str
    reduction: str
    root: int
    size_bytes: int

    def __str__(self) -> str:
        """`all_reduce sum float32 1024 B`."""
        words = (
            self.kind,
            self.reduction,
            self.dtype,
            f"{self.size_bytes} B",
            f"root {self.root}" if self.root else "",
        )
        return " ".join(word for word in words if word)


class Grant(NamedTuple):
    """A receiver's permission: of operation `seq`, messages below `limit` may be written.

    `address` and `rkey` say where messages that are not staged go. Grants are cumulative, as a TCP window is.
    """

    seq: int
    limit: int
    address: int
    rkey: int
    signature: Signature


def pack_grant(grant: Grant) -> bytes:
    """Bytes of a mailbox slot."""
    kind, dtype, reduction, root, size_bytes = grant.signature
    codes = (KINDS.index(kind), DTYPES.index(dtype), REDUCTIONS.index(reduction), root)
    return _GRANT.pack(grant.seq, grant.limit, grant.address, grant.rkey, *codes, size_bytes)


def unpack_grant(buffer: memoryview, slot: int) -> Grant:
    """The grant in a mailbox slot."""
    seq, limit, address, rkey, kind, dtype, reduction, root, size_bytes = _GRANT.unpack_from(buffer, slot * GRANT_BYTES)
    signature = Signature(KINDS[kind], DTYPES[dtype], REDUCTIONS[reduction], root, size_bytes)
    return Grant(seq, limit, address, rkey, signature)


class SendingEnd(msgspec.Struct, frozen=True):
    """The sending end of a directed connection, as its receiver needs it: its QPs and its mailbox for grants."""

    remotes: list[Remote]
    mailbox: int
    mailbox_rkey: int


class ReceivingEnd(msgspec.Struct, frozen=True):
    """The receiving end of a directed connection, as its sender needs it; staging 0 where nothing is ever reduced."""

    remotes: list[Remote]
    staging: int
    staging_rkey: int


class Mode(msgspec.Struct, frozen=True):
    """What is common to all kinds of hello: whether its communicator is to outlive NICs."""

    resilient: bool = False


class Hello(msgspec.Struct, frozen=True):
    """All ends of one rank, by peer and then by channel, and the line rates of its NICs."""

    rates_bps: list[float]
    sending: dict[int, list[SendingEnd]]
    receiving: dict[int, list[ReceivingEnd]]
    resilient: bool = False
