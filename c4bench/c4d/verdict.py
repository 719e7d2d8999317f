"""A finding before it is stamped with the times of alarm and naming."""

import msgspec

from c4bench.model.diagnosis import Component, Diagnosis, Syndrome


class Verdict(msgspec.Struct, frozen=True):
    """What is wrong, with which component, since when (master's clock), and how that could be refuted."""

    syndrome: Syndrome
    component: Component
    onset_s: float
    confidence: float
    evidence: tuple[str, ...]
    refuted_by: str

    def stamped(self, job: str, alarmed_s: float, named_s: float) -> Diagnosis:
        """The diagnosis for `job`."""
        return Diagnosis(
            job,
            self.syndrome,
            self.component,
            self.onset_s,
            alarmed_s,
            named_s,
            self.confidence,
            self.evidence,
            self.refuted_by,
        )


def rank_component(job: str, rank: int) -> Component:
    """`JOB:RANK`."""
    return Component("rank", f"{job}:{rank}")
