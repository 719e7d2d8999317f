"""What ranks exchange: endpoint addresses when they connect, and grants during operations."""

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
    """The parameters of an operation that must be equal on all ranks."""

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
    """A receiver's credit: of operation `seq`, messages below `limit` may be written.

    Messages that are not staged go to `address`, with `rkey`. Grants are cumulative, as a TCP window is.
    """

    seq: int
    limit: int
    address: int
    rkey: int
    signature: Signature


def pack_grant(grant: Grant) -> bytes:
    """A grant as the bytes of a mailbox slot."""
    kind, dtype, reduction, root, size_bytes = grant.signature
    codes = (KINDS.index(kind), DTYPES.index(dtype), REDUCTIONS.index(reduction), root)
    return _GRANT.pack(grant.seq, grant.limit, grant.address, grant.rkey, *codes, size_bytes)


def unpack_grant(buffer: memoryview, slot: int) -> Grant:
    """The grant in a mailbox slot."""
    seq, limit, address, rkey, kind, dtype, reduction, root, size_bytes = _GRANT.unpack_from(buffer, slot * GRANT_BYTES)
    signature = Signature(KINDS[kind], DTYPES[dtype], REDUCTIONS[reduction], root, size_bytes)
    return Grant(seq, limit, address, rkey, signature)


class SendingEnd(msgspec.Struct, frozen=True):
    """A sending endpoint as its receiver needs it: its QPs, and its mailbox for grants."""

    remotes: list[Remote]
    mailbox: int
    mailbox_rkey: int


class ReceivingEnd(msgspec.Struct, frozen=True):
    """A receiving endpoint as its sender needs it: its QPs, and its staging memory, 0 if it has none."""

    remotes: list[Remote]
    staging: int
    staging_rkey: int


class Mode(msgspec.Struct, frozen=True):
    """The field that all kinds of hello share: whether the communicator is resilient."""

    resilient: bool = False


class Hello(msgspec.Struct, frozen=True):
    """All endpoints of one rank, by peer and then by channel, and the line rates of its NICs."""

    rates_bps: list[float]
    sending: dict[int, list[SendingEnd]]
    receiving: dict[int, list[ReceivingEnd]]
    resilient: bool = False
