"""What a job's ranks record about their collectives, in three layers (C4, arXiv 2406.04594: ACCL's enhancement).

Counters are cumulative since the communicator was made, so a lost window loses resolution and nothing else. Times are
seconds on the recording host's own clock unless a name says otherwise.

A master holds hundreds of thousands of these. They hold text, numbers and each other, and no cycles, so garbage
collection may leave them out (`gc=False`).
"""

import msgspec


class Gpu(msgspec.Struct, frozen=True, gc=False, cache_hash=True):
    """A GPU by its number on its host; `nic` is the place of its nearest NIC among its rank's."""

    index: int
    nic: int


class Member(msgspec.Struct, frozen=True, gc=False, cache_hash=True):
    """Where a rank of a communicator sits; `seat` is its rank in the job, -1 where that is not known.

    Where a host has a rank for each GPU, `nics` are all of the host's, and `gpu` is the rank's own.
    """

    rank: int
    host: str
    nics: tuple[str, ...]
    seat: int = -1
    gpu: Gpu | msgspec.UnsetType = msgspec.UNSET


class CommRecord(msgspec.Struct, frozen=True, gc=False, cache_hash=True):
    """Communicator layer: who belongs to it."""

    comm: str
    job: str
    members: tuple[Member, ...]


class Failure(msgspec.Struct, frozen=True, gc=False):
    """What a member of a communicator tells the others: that it cannot go on, and why.

    `status` is the completion status of a transport error (`RETRY_EXC_ERR`), else empty; `peer` is whom it could not
    reach then, -1 where there is no such rank.
    """

    rank: int
    reason: str
    status: str = ""
    peer: int = -1


class OpRecord(msgspec.Struct, frozen=True, gc=False):
    """Operation layer: one collective as one rank saw it.

    `entered_s`: the rank called it; `started_s`: its first byte moved in or out (0.0 before that); `finished_s`: it
    returned (0.0 while running). `seq` counts the operations of a communicator from 0 on every rank. `awaits` are the
    ranks whose data this rank still lacks: with a connection's `state`, the edges of the wait-for graph.
    """

    comm: str
    rank: int
    seq: int
    kind: str
    algorithm: str
    dtype: str
    size_bytes: int
    entered_s: float
    started_s: float
    finished_s: float
    awaits: tuple[int, ...] = ()


class ConnRecord(msgspec.Struct, frozen=True, gc=False):
    """Connection layer: one QP's sending side. All counters cumulative.

    `wait_credit_s`: time with data ready but no credit from the receiver (a slow *peer*); `wait_data_s`: time inside an
    operation with nothing ready to send (a slow *upstream*); `transfer_s`: time with bytes posted and not yet
    acknowledged (a slow *network*); `shared_s`: the same, but each moment shared equally among the connections of the
    communicator that are in transfer on that NIC, so that transfers which wait for each other look no slower than one
    alone. `outstanding` messages are posted and unacknowledged now; `owed` are granted or awaited by the running
    operation and not yet posted.

    At any time a connection is in one `state`: transfer while anything is outstanding, else credit, data, or idle. So
    the three times never overlap. They run up to `state_since_s`; what the state has lasted since then comes on top.
    `shared_s` runs up to the last message.

    The first `posted` messages were posted at times that add up to `posted_sum_ns`, modulo 2^64 (see `ArrivalRecord`).
    """

    comm: str
    rank: int
    peer: int
    source: str
    destination: str
    qp: int
    source_port: int
    messages: int
    size_bytes: int
    wait_credit_s: float
    wait_data_s: float
    transfer_s: float
    shared_s: float
    last_progress_s: float
    outstanding: int
    owed: int
    state: str = "idle"
    state_since_s: float = 0.0
    posted: int = 0
    posted_sum_ns: int = 0


class ArrivalRecord(msgspec.Struct, frozen=True, gc=False):
    """Connection layer: the receiving side of the QP whose `ConnRecord` has the same source, destination and `qp`.

    `messages` have arrived, the first `arrived` of them at times that add up to `arrived_sum_ns` on the receiver's
    clock, modulo 2^64. Where `arrived` is as many as were `posted`, the two sums differ by these messages' total
    one-way delay, plus the offset of the two clocks once a message. A round trip cannot tell a NIC that sends slowly
    from one that receives slowly, since acknowledgements share its queues; one-way delays can. Both ends tell the
    roundest count of a window, which need not be its last, so that they tell the same.
    """

    comm: str
    rank: int
    peer: int
    source: str
    destination: str
    qp: int
    messages: int
    arrived: int = 0
    arrived_sum_ns: int = 0


class RankRecord(msgspec.Struct, frozen=True, gc=False):
    """Process layer: how the agent finds the rank's process. `state` is one of running, stopped, exited, killed."""

    job: str
    rank: int
    host: str
    pid: int
    state: str
    exit_code: int | None = None


class NicRecord(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Device layer: a NIC's state and counters, over all its users. Counters are cumulative, None where it has none.

    `state` is the port's physical state as InfiniBand calls it (linkup, polling, disabled, ...; empty where it cannot
    be read): a port that polls has lost its carrier, a disabled one was switched off here. `retransmits` are the
    occasions on which it sent again (expired timers and NAKs), `out_of_sequence` packets that came to it too early,
    `duplicates` those that came again. `ecn_marked` are packets that came marked, `cnp_sent` and `cnp_received`
    congestion notification packets of RoCE v2 (annex A17.9.3). Pause frames are those of all priorities (IEEE 802.1Qbb)
    and of the whole link (802.3x); the times (us) are how long they have stopped the switch's port, and this one.
    """

    nic: str
    state: str
    retransmits: int | None = None
    out_of_sequence: int | None = None
    duplicates: int | None = None
    cnp_sent: int | None = None
    cnp_received: int | None = None
    ecn_marked: int | None = None
    pause_sent: int | None = None
    pause_received: int | None = None
    pause_sent_us: int | None = None
    pause_received_us: int | None = None

    @property
    def counters(self) -> tuple[int | None, ...]:
        """All counters, in the order of `COUNTERS`."""
        return tuple(getattr(self, name) for name in COUNTERS)


COUNTERS = NicRecord.__struct_fields__[2:]
