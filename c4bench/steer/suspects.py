"""Which diagnoses need more evidence before steering acts, and what trials or probes of the job's NICs add to them.

When a connection dies, the ranks at both ends exit within milliseconds and all others follow, so the first to exit
says little about the cause. Therefore neighbours in a ring of all the job's NICs, with an idle host's if there is one,
transfer data: a NIC that fails with both neighbours is broken. If something is only slow, C4D's probes decide.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

import msgspec

from c4bench.c4d.probing.probes import probe_outcomes, remaining_suspects
from c4bench.model.advice import LEAST_CONFIDENCE
from c4bench.model.diagnosis import Cause, Component, Diagnosis, Syndrome
from c4bench.model.fabric import Nic

_TRIED = 0.95
# The least slowdown of transfers, if a diagnosis does not state one.
_TIMES = 1.1
# Causes that were observed on the component itself.
_OBSERVED = (Cause.HOST_SILENT, Cause.PROCESS_STOPPED)
_HANGS = (Syndrome.COMMUNICATION_HANG, Syndrome.NON_COMMUNICATION_HANG)


def needs_trials(diagnosis: Diagnosis) -> bool:
    """Whether another component may be to blame, and trial transfers could show which."""
    if diagnosis.syndrome not in _HANGS or diagnosis.component.kind == "job" or diagnosis.cause in _OBSERVED:
        return False
    return bool(diagnosis.alternatives) or diagnosis.confidence < LEAST_CONFIDENCE


def ring_pairs(nics: Iterable[Nic]) -> list[tuple[Nic, Nic]]:
    """Neighbours in rings of NICs, one ring for each rail, because rails need not be connected to each other."""
    rings: dict[int, list[Nic]] = {}
    for nic in nics:
        rings.setdefault(nic.index, []).append(nic)
    return [pair for ring in rings.values() if len(ring) > 2 for pair in zip(ring, ring[1:] + ring[:1], strict=True)]


def broken_nics(failed: Iterable[tuple[Nic, Nic]]) -> set[str]:
    """NICs whose trials with both neighbours failed."""
    failures = Counter(nic.name for pair in failed for nic in pair)
    return {name for name, count in failures.items() if count > 1}


def after_trials(diagnosis: Diagnosis, broken: Collection[str], tried: Collection[str]) -> tuple[Diagnosis, ...]:
    """The diagnosis after trials of NICs: one for each broken NIC, or the same if the trials do not decide.

    If most NICs are broken the fabric is to blame, and the diagnosis stays.
    """
    if not tried or 2 * len(broken) > len(tried):
        return (diagnosis,)
    if not broken:
        evidence = f"trials of all {len(tried)} NICs succeeded"
        left = tuple(part for part in diagnosis.suspects if part.kind != "nic")
        component, others = (left[0], left[1:]) if left else (diagnosis.component, diagnosis.alternatives)
        return (_changed(diagnosis, component, others, diagnosis.confidence, evidence),)
    nics = [Component("nic", name) for name in tried if name in broken]
    evidence = f"trials of {len(tried)} NICs: all succeeded but those of {', '.join(nic.name for nic in nics)}"
    return tuple(_changed(diagnosis, nic, (), max(diagnosis.confidence, _TRIED), evidence) for nic in nics)


def after_probes(diagnosis: Diagnosis, shares: Sequence[float]) -> Diagnosis:
    """The diagnosis after its probes, which reached these shares of their NICs' rates; the same if they do not decide.

    The remaining alternatives are those that no transfer can tell from the component.
    """
    suspects = diagnosis.suspects
    bad = probe_outcomes(shares, diagnosis.figures.get("times_as_long", _TIMES))
    left = remaining_suspects(suspects, diagnosis.probes, bad)
    if not left or len(left) == len(suspects):
        return diagnosis
    component, *others = (suspect for suspect in suspects if suspect in left)
    evidence = "probes, relative to the best of them: " + ", ".join(
        f"{probe.source}>{probe.destination} {share / max(shares):.0%}"
        for probe, share in zip(diagnosis.probes, shares, strict=True)
    )
    return msgspec.structs.replace(
        diagnosis,
        component=component,
        alternatives=tuple(others),
        confidence=max(diagnosis.confidence, _TRIED),
        evidence=(*diagnosis.evidence, evidence),
        refuted_by=f"a probe at full rate across {component}",
        probed=True,
    )


def _changed(
    diagnosis: Diagnosis, component: Component, alternatives: tuple[Component, ...], confidence: float, evidence: str
) -> Diagnosis:
    syndrome = Syndrome.COMMUNICATION_HANG if component.kind in ("nic", "path") else diagnosis.syndrome
    return msgspec.structs.replace(
        diagnosis,
        syndrome=syndrome,
        component=component,
        alternatives=alternatives,
        confidence=confidence,
        evidence=(*diagnosis.evidence, evidence),
    )
