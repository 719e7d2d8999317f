"""The addresses of a rank's rails, as their far ends need them."""

import msgspec

from c4bench.verbs.transport import Remote


class Box(msgspec.Struct, frozen=True):
    """Memory that the far end may write to: its address, and its remote key on every NIC."""

    address: int
    rkeys: list[int]


class FarSending(msgspec.Struct, frozen=True):
    """The sending end of an edge: QPs by rail, and the mailboxes for grants and for control messages."""

    data: list[Remote]
    probe: list[Remote]
    mailbox: int
    mailbox_rkeys: list[int]
    words: Box


class FarReceiving(msgspec.Struct, frozen=True):
    """The receiving end of an edge: QPs by rail, staging memory by channel (0: none), and the ledger, with their keys.

    The ledger holds how many operations the rank has ended; all messages of those have arrived.
    """

    data: list[Remote]
    probe: list[Remote]
    staging: int
    staging_rkeys: list[int]
    ledger: int
    ledger_rkeys: list[int]
    words: Box


class RailHello(msgspec.Struct, frozen=True):
    """All edges of one rank, by peer, and the line rates of its NICs."""

    rates_bps: list[float]
    sending: dict[int, FarSending]
    receiving: dict[int, FarReceiving]
    resilient: bool = True
