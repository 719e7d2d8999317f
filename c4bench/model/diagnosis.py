"""A diagnosis of C4D: syndrome, component, onset, confidence, and what would refute it."""

from collections.abc import Mapping
from enum import StrEnum

import msgspec


class Syndrome(StrEnum):
    """The four syndromes of C4D (arXiv 2406.04594, section on C4D)."""

    COMMUNICATION_HANG = "communication_hang"
    NON_COMMUNICATION_HANG = "non_communication_hang"
    COMMUNICATION_SLOW = "communication_slow"
    NON_COMMUNICATION_SLOW = "non_communication_slow"


class Cause(StrEnum):
    """What was seen of the component.

    Mismatches are called as PyTorch's flight recorder calls them (`MatchState`); that of order, which it has no name
    for, in its manner.
    """

    PROCESS_ENDED = "process_ended"
    PROCESS_STOPPED = "process_stopped"
    HOST_SILENT = "host_silent"
    NOT_ENTERED = "not_entered"
    STUCK_INSIDE = "stuck_inside"
    COMPLETION_NOT_SEEN = "completion_not_seen"
    CONNECTION_STALLED = "connection_stalled"
    CONNECTION_LOST = "connection_lost"
    PORT_DOWN = "port_down"
    LINK_MISSING = "link_missing"
    COLLECTIVE_TYPE_MISMATCH = "collective_type_mismatch"
    COLLECTIVE_DTYPE_MISMATCH = "collective_dtype_mismatch"
    SIZE_OR_SYNTAX_MISMATCH = "size_or_syntax_mismatch"
    COLLECTIVE_ORDER_MISMATCH = "collective_order_mismatch"
    TRANSFER_SLOW = "transfer_slow"
    PACKETS_LOST = "packets_lost"
    PAUSE_STORM = "pause_storm"
    COMPUTE_SLOW = "compute_slow"


class Component(msgspec.Struct, frozen=True):
    """A part that can be to blame.

    `kind` is one of rank, nic, gpu, path, link, switch, host, job. `name` is `JOB:RANK`, `HOST/INDEX`, `HOST/gpuINDEX`
    (a GPU's link to others of its host), `SOURCE>DESTINATION` (of these names), a link's far address, one of a switch's
    addresses, the host's or the job's name. `side` tells a transmitter (`tx`) from a receiver (`rx`) of a NIC or a GPU;
    empty where that has no meaning. A job is to blame for bugs that no other host would cure.
    """

    kind: str
    name: str
    side: str = ""

    def __str__(self) -> str:
        """`nic h5/0 (rx)`."""
        return self.named({})

    def named(self, links: Mapping[str, str]) -> str:
        """For people: `nic h5/0 (rx)`, or `link leaf2/up1 > spine1/down2` where `links` has a name for the address."""
        name = links.get(self.name, self.name) if self.kind == "link" else self.name
        return f"{self.kind} {name}" + (f" ({self.side})" if self.side else "")


class NetworkLoss(msgspec.Struct, frozen=True):
    """What a rank has found of a part of the network that its communicator goes on without.

    `alternatives` cannot be told from `component`. `onset_s` is on the clock of the rank's host.
    """

    rank: int
    component: Component
    onset_s: float
    alternatives: tuple[Component, ...] = ()


class OperationSide(msgspec.Struct, frozen=True):
    """An operation as some of the job's `ranks` see it, in the field names of PyTorch's flight recorder.

    `pg_name` is the communicator, `profiling_name` the collective; `state` is scheduled, started or completed.
    """

    pg_name: str
    collective_seq_id: int
    profiling_name: str
    dtype: str
    size_bytes: int
    state: str
    ranks: tuple[int, ...]


class ProbeFlow(msgspec.Struct, frozen=True):
    """A short transfer between two NICs that would tell suspects apart: at `rate_bps` for `duration_s`, not more.

    It goes by `source_port`, 0 where any will do. It is slow, or fails, if one of those it `crosses` is bad, and may be
    if one that only its acknowledgements cross, in `returns`, is.
    """

    source: str
    destination: str
    source_port: int
    rate_bps: float
    duration_s: float
    crosses: tuple[Component, ...]
    returns: tuple[Component, ...] = ()


class Diagnosis(msgspec.Struct, frozen=True):
    """A finding. Times are on the master's clock; `onset_s` is when the telemetry first departs from normal.

    `confidence` is the chance that `component` is the right one. `evidence` is for people, `figures` are its numbers,
    units in their names. `alternatives` would explain the telemetry as well, and `probes` would decide between them.
    `operations` are those that wait, or both sides of a mismatch. `probed`: it is what probes have left of suspects.
    """

    job: str
    syndrome: Syndrome
    component: Component
    onset_s: float
    alarmed_s: float
    named_s: float
    confidence: float
    evidence: tuple[str, ...]
    refuted_by: str
    cause: Cause | None = None
    figures: dict[str, float] = {}
    alternatives: tuple[Component, ...] = ()
    operations: tuple[OperationSide, ...] = ()
    probes: tuple[ProbeFlow, ...] = ()
    probed: bool = False

    @property
    def suspects(self) -> tuple[Component, ...]:
        """The component and its alternatives."""
        return (self.component, *self.alternatives)
