"""What ranks exchange: endpoint addresses when they connect, and grants during operations."""

import struct
from typing import NamedTuple

import msgspec

from c4bench.verbs.transport import Remote

KINDS = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "reduce", "send", "barrier")
REDUCTIONS = ("", "sum", "min", "max", "avg")
DTYPES = ("", "float32", "float64", "int32", "int64", "float16", "bfloat16", "int8", "uint8", "bool")
_GRANT = struct.Struct("<IIQIBBBHQ")
_PLACE = struct.Struct("<QI")
MAX_SHARED_CHANNELS = 15
MAILBOX_SLOTS = 16
# A slot holds a grant with a place on each NIC.
SLOT_BYTES = 256
MAILBOX_BYTES = SLOT_BYTES * MAILBOX_SLOTS
# The slot number by which a receiver tells that packets came marked, as a CNP of RoCE v2 says it.
CONGESTION_NOTICE = MAILBOX_SLOTS
# Stands for the channel in the immediate of a control message on a rail that channels share.
CONTROL_CHANNEL = MAX_SHARED_CHANNELS
_SLOT_BITS = 8


class Immediates(NamedTuple):
    """How an immediate is divided: the channel where channels share a QP, the operation, and the message's index.

    Numbers are modulo their field's size.
    """

    channel_bits: int
    seq_bits: int
    index_bits: int

    @property
    def index_mask(self) -> int:
        """The largest index that a field holds."""
        return (1 << self.index_bits) - 1

    def data(self, channel: int, seq: int, index: int) -> int:
        """The immediate of message `index` of operation `seq`."""
        number = (seq & (1 << self.seq_bits) - 1) << self.index_bits | index & self.index_mask
        return (channel & (1 << self.channel_bits) - 1) << self.seq_bits + self.index_bits | number

    def channel(self, immediate: int, own: int) -> int:
        """The channel of a message; `own` on a QP that only this channel uses."""
        return immediate >> self.seq_bits + self.index_bits if self.channel_bits else own

    def index_after(self, consumed: int, immediate: int) -> int:
        """A message's index within its operation, by its immediate; it is near that of the next one to be used."""
        return consumed + ((immediate - consumed) & self.index_mask)

    def is_of(self, seq: int, immediate: int) -> bool:
        """Whether a message may be one of operation `seq`."""
        mask = (1 << self.seq_bits) - 1
        return (seq & mask) == immediate >> self.index_bits & mask

    def slot(self, channel: int, slot: int) -> int:
        """The immediate of what is written to the mailbox of a channel."""
        return (channel << _SLOT_BITS if self.channel_bits else 0) | slot

    def channel_and_slot(self, immediate: int, own: int) -> tuple[int, int]:
        """The channel and the slot of what has come into a mailbox."""
        channel, slot = divmod(immediate, 1 << _SLOT_BITS)
        return channel if self.channel_bits else own, slot


OWN_QPS = Immediates(0, 12, 20)
SHARED_QPS = Immediates(4, 10, 18)


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

    Messages that are not staged go to one of `places`: an address and a key for each NIC that the sender may use.
    Grants are cumulative, as a TCP window is.
    """

    seq: int
    limit: int
    places: tuple[tuple[int, int], ...]
    signature: Signature


def pack_grant(grant: Grant) -> bytes:
    """A grant as the bytes of a mailbox slot."""
    kind, dtype, reduction, root, size_bytes = grant.signature
    codes = (KINDS.index(kind), DTYPES.index(dtype), REDUCTIONS.index(reduction), root)
    first, *others = grant.places
    packed = _GRANT.pack(grant.seq, grant.limit, *first, *codes, size_bytes)
    return packed + b"".join(_PLACE.pack(*place) for place in others)


def unpack_grant(slot: memoryview, nics: int) -> Grant:
    """The grant in a mailbox slot, with places on so many NICs."""
    seq, limit, address, rkey, kind, dtype, reduction, root, size_bytes = _GRANT.unpack_from(slot)
    others = (_PLACE.unpack_from(slot, _GRANT.size + nic * _PLACE.size) for nic in range(nics - 1))
    signature = Signature(KINDS[kind], DTYPES[dtype], REDUCTIONS[reduction], root, size_bytes)
    return Grant(seq, limit, ((address, rkey), *others), signature)


class Backup(msgspec.Struct, frozen=True):
    """What the far end needs of a resilient end on one NIC.

    QPs for probes, the memory for control messages, and at a receiving end the ledger: how many operations the rank has
    ended, all messages of which have arrived.
    """

    probes: list[Remote]
    words: int
    words_rkey: int
    ledger: int = 0
    ledger_rkey: int = 0


class SendingEnd(msgspec.Struct, frozen=True, omit_defaults=True):
    """The sending end of a channel as its receiver needs it: the NIC's QPs, and the mailbox for grants."""

    remotes: list[Remote]
    mailbox: int
    mailbox_rkey: int
    backup: Backup | None = None


class ReceivingEnd(msgspec.Struct, frozen=True, omit_defaults=True):
    """The receiving end of a channel as its sender needs it: the NIC's QPs, and the staging memory if there is any."""

    remotes: list[Remote]
    staging: int
    staging_rkey: int
    backup: Backup | None = None


class EndpointAddresses(msgspec.Struct, frozen=True):
    """All ends of one rank, by peer and then by the edge's channels in order, and the line rates of its NICs.

    `meets` is the name under which it listens for ranks of its host.
    """

    rates_bps: list[float]
    sending: dict[int, list[SendingEnd]]
    receiving: dict[int, list[ReceivingEnd]]
    resilient: bool = False
    meets: str | msgspec.UnsetType = msgspec.UNSET
