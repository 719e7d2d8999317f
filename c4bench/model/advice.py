"""When a diagnosis is good enough to take something out of service: the one rule for what is printed and what is done.

A wrong host out of service costs a spare, a restart and an operator's trust, and the fault goes on. So the finding must
be alone, and as likely as `LEAST_CONFIDENCE`. Below that the answer is the list of suspects.
"""

from collections.abc import Sequence

from c4bench.model.diagnosis import Cause, Component, Diagnosis

# A kind of finding that no campaign has counted is given 0.8 at most (`c4d/confidence.py`), and so is an answer from
# files that one more look could overturn. What is counted, and alone, was right at least so often.
LEAST_CONFIDENCE = 0.9
_BUGS = (Cause.COLLECTIVE_TYPE_MISMATCH, Cause.COLLECTIVE_DTYPE_MISMATCH, Cause.SIZE_OR_SYNTAX_MISMATCH,
         Cause.COLLECTIVE_ORDER_MISMATCH)  # fmt: skip
_SHOWN = 4


def rivals(diagnosis: Diagnosis) -> tuple[Component, ...]:
    """The alternatives that taking out the component would not cure.

    Links that probes have left beside a NIC are its cable, which no packet can tell from it and which leaves with it.
    """
    cable = diagnosis.probed and diagnosis.component.kind == "nic"
    return tuple(other for other in diagnosis.alternatives if not (cable and other.kind == "link"))


def why_not(diagnosis: Diagnosis) -> str:
    """Why nothing may be taken out of service for a diagnosis; empty if something may."""
    if diagnosis.component.kind == "job":
        bug = diagnosis.cause in _BUGS
        return "a bug of the job, which no other host would fix" if bug else "nobody alone is known to be to blame"
    if others := rivals(diagnosis):
        return f"{_some(others)} may be to blame as well"
    if diagnosis.confidence < LEAST_CONFIDENCE:
        return f"confidence {diagnosis.confidence:.0%} is below {LEAST_CONFIDENCE:.0%}"
    return ""


def _some(parts: Sequence[Component]) -> str:
    more = f" and {len(parts) - _SHOWN} more" if len(parts) > _SHOWN else ""
    return ", ".join(map(str, parts[:_SHOWN])) + more
