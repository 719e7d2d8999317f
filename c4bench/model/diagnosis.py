"""What C4D says: which syndrome, which component, since when, how sure, and what would refute it."""

from enum import StrEnum

import msgspec


class Syndrome(StrEnum):
    """The four syndromes of C4D (arXiv 2406.04594, section on C4D)."""

    COMMUNICATION_HANG = "communication_hang"
    NON_COMMUNICATION_HANG = "non_communication_hang"
    COMMUNICATION_SLOW = "communication_slow"
    NON_COMMUNICATION_SLOW = "non_communication_slow"


class Component(msgspec.Struct, frozen=True):
    """A part that can be to blame.

    `kind` is one of rank, nic, path, host. `name` is `JOB:RANK`, `HOST/INDEX`, `SOURCE>DESTINATION` (NIC names) or the
    host's name. `side` tells a NIC's transmitter (`tx`) from its receiver (`rx`); empty where that has no meaning.
    """

    kind: str
    name: str
    side: str = ""

    def __str__(self) -> str:
        """`nic h5/0 (rx)`."""
        return f"{self.kind} {self.name}" + (f" ({self.side})" if self.side else "")


class Diagnosis(msgspec.Struct, frozen=True):
    """A finding. Times are on the master's clock; `onset_s` is when the telemetry first departs from normal."""

    job: str
    syndrome: Syndrome
    component: Component
    onset_s: float
    alarmed_s: float
    named_s: float
    confidence: float
    evidence: tuple[str, ...]
    refuted_by: str
