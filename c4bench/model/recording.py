"""The telemetry of a job in order of arrival: windows and the other records that C4D ingests. A run keeps it.

Replayed in the same order it gives the same diagnoses. Times are on the master's clock.
"""

from typing import NamedTuple

import msgspec

from c4bench.model.diagnosis import NetworkLoss, ProbeFlow
from c4bench.model.fabric import MissingLink, Train
from c4bench.model.telemetry import Failure
from c4bench.model.window import Window

LearntPath = tuple[str, str, int, tuple[str, ...]]  # source, destination, source port, and the links' far addresses


class FailureReported(msgspec.Struct, frozen=True, tag_field="record", tag="failure"):
    """A member of a communicator reported that it cannot continue: a hint at who failed first, not a verdict.

    `seat` is the job's rank of the one that the failure names, as the report has it; -1 where it does not say.
    """

    at_s: float
    job: str
    comm: str
    failure: Failure
    seat: int = -1


class LossReported(msgspec.Struct, frozen=True, tag_field="record", tag="loss"):
    """A member of a communicator goes on without a part of the network, and says which; `seat` is its job's rank."""

    at_s: float
    job: str
    comm: str
    loss: NetworkLoss
    seat: int = -1


class PathsLearnt(msgspec.Struct, frozen=True, tag_field="record", tag="ways"):
    """C4P has learnt where these source ports lead."""

    at_s: float
    ways: tuple[LearntPath, ...]


class LinksMissing(msgspec.Struct, frozen=True, tag_field="record", tag="links_missing"):
    """C4P misses these links now, and no others."""

    at_s: float
    links: tuple[MissingLink, ...]


class TrafficArrival(msgspec.Struct, frozen=True, tag_field="record", tag="arrival"):
    """C4D has seen connections of a job begin to carry, or do so again, in the span that closed at `closed_s`.

    They are between these `nics`, and cross these `links`; if `known`, all that they cross.
    """

    job: str
    opened_s: float
    closed_s: float
    nics: frozenset[str]
    links: frozenset[str]
    known: bool


class LinkRates(msgspec.Struct, frozen=True, tag_field="record", tag="link_rates"):
    """C4P knows these rates of links, bit/s, and no others."""

    at_s: float
    bps: dict[str, float]


class TrafficCarried(msgspec.Struct, frozen=True, tag_field="record", tag="carried"):
    """A job, some of whose packets came marked, has carried so much on links in the span that closed at `closed_s`.

    `bps` is payload, bit/s, by link.
    """

    job: str
    opened_s: float
    closed_s: float
    bps: dict[str, float]


class ProbeSweep(msgspec.Struct, frozen=True, tag_field="record", tag="swept"):
    """Transfers on their own between all of a job's NICs, and the share of its NICs' rate that each came to."""

    at_s: float
    job: str
    probes: tuple[ProbeFlow, ...]
    shares: tuple[float, ...]


class ExpiringProbe(NamedTuple):
    """A packet with the 5-tuple of data between two NICs, which expires after so many `hops` at a switch."""

    source: str
    destination: str
    source_port: int
    hops: int


class HopsProbed(msgspec.Struct, frozen=True, tag_field="record", tag="hops_probed"):
    """Which addresses answered probes that were sent to end doubts about a job.

    "" where none did, None where a switch may have been silent because it had no answer left for this NIC.
    """

    at_s: float
    job: str
    probes: tuple[ExpiringProbe, ...]
    answers: tuple[str | None, ...]


class Delivery(NamedTuple):
    """What arrived by a source port of `sent` packets such as data, and as many such as acknowledgements.

    `late` times some had been overtaken.
    """

    source: str
    destination: str
    source_port: int
    sent: int
    data: int
    acks: int
    late: int


class DeliveriesCounted(msgspec.Struct, frozen=True, tag_field="record", tag="deliveries"):
    """What arrived of numbered packets that were sent to end doubts about a job."""

    at_s: float
    job: str
    deliveries: tuple[Delivery, ...]


class TimedFlow(NamedTuple):
    """Those of `sent` packet trains of `train_bytes` that arrived whole by a source port.

    The slower of the two NICs has `rate_bps`.
    """

    source: str
    destination: str
    source_port: int
    rate_bps: float
    train_bytes: int
    sent: int
    trains: tuple[Train, ...]


class TrainsTimed(msgspec.Struct, frozen=True, tag_field="record", tag="trains"):
    """How packet trains arrived that were sent to end doubts about a job."""

    at_s: float
    job: str
    flows: tuple[TimedFlow, ...]


class ProbingBegan(msgspec.Struct, frozen=True, tag_field="record", tag="probing_began"):
    """The master sends probes to end the present doubts about a job."""

    at_s: float
    job: str


class ProbingEnded(msgspec.Struct, frozen=True, tag_field="record", tag="probing_ended"):
    """No more probes will be sent to end the present doubts about a job.

    So many `packets` and trains were sent, which took at most this share of a NIC's rate meanwhile.
    """

    at_s: float
    job: str
    packets: int = 0
    load_fraction: float = 0.0


class Evaluated(msgspec.Struct, frozen=True, tag_field="record", tag="judged"):
    """C4D judged what it had heard until then."""

    at_s: float


# Probes that were sent to end doubts, their beginning and their end.
DoubtReport = ProbingBegan | HopsProbed | DeliveriesCounted | TrainsTimed | ProbingEnded
# What is about one job.
JobReport = FailureReported | LossReported | ProbeSweep | DoubtReport
# What detectors of all jobs share: what path planning has learnt, and what each has seen of its own job's traffic.
PlannerRecord = PathsLearnt | LinksMissing | LinkRates
TrafficRecord = TrafficArrival | TrafficCarried
FabricRecord = PlannerRecord | TrafficRecord
TaggedRecord = JobReport | FabricRecord | Evaluated
# A window is the one record without a tag.
Record = Window | TaggedRecord


class Entry(NamedTuple):
    """A record that came at `time_s` about an attempt that C4D followed since `since_s` (s, the master's clock)."""

    attempt: str
    since_s: float
    time_s: float
    record: Record
