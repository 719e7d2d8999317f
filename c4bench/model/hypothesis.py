"""What may be behind a finding: each component that C4D weighed, and how much speaks for it."""

from enum import StrEnum

import msgspec

from c4bench.model.benign import Benign, BenignSlowdown
from c4bench.model.diagnosis import Component, Diagnosis


class Standing(StrEnum):
    """What became of a hypothesis: the finding names it, lists it as an alternative, or C4D has dropped it."""

    NAMED = "named"
    ALTERNATIVE = "alternative"
    DROPPED = "dropped"


class Hypothesis(msgspec.Struct, frozen=True):
    """A component that may be to blame, or a benign explanation.

    Of `cases` that crossed it so many were `bad`: transfers, packets or connections. `gain` is how many times as likely
    all observations are if it is to blame than if nothing is (natural logarithm); 0 where nothing was weighed.
    """

    what: Component | Benign
    standing: Standing
    gain: float = 0.0
    bad: float = 0.0
    cases: float = 0.0


class Explanation(msgspec.Struct, frozen=True):
    """The hypotheses behind a `diagnosis`, or behind a `slowdown` without a fault; the other one is None."""

    hypotheses: tuple[Hypothesis, ...]
    diagnosis: Diagnosis | None = None
    slowdown: BenignSlowdown | None = None
