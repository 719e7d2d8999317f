"""Why something became slower that is well: what C4D says in place of a diagnosis."""

from enum import StrEnum

import msgspec

from c4bench.model.diagnosis import Component


class Benign(StrEnum):
    """A benign explanation of slow transfers.

    `congestion`: the links that they cross carry all that they can, because more is sent over them than that. Of
    what the others explain nothing is said: another job's traffic arrived, connections of the job moved, or links are
    missing, whose traffic others carry.
    """

    CONGESTION = "congestion"
    OTHER_JOB = "other_job"
    REROUTED = "rerouted"
    LINKS_MISSING = "links_missing"


class BenignSlowdown(msgspec.Struct, frozen=True):
    """Transfers of `job` are slower since `onset_s`, and no component is at fault.

    `component` is what would have been named, `links` are those that explain it (far addresses). Times are on the
    master's clock. `evidence` is for people, `figures` are its numbers, units in their names.
    """

    job: str
    reason: Benign
    component: Component
    links: tuple[str, ...]
    onset_s: float
    explained_s: float
    evidence: tuple[str, ...]
    figures: dict[str, float] = {}
