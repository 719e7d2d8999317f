"""Whether a diagnosis is to be looked into before it is acted on, and what trials of the job's NICs make of it.

When a connection dies, the ranks at both its ends exit within milliseconds and all others with them: who went first
says little. Transfers between neighbours of a ring of all the job's NICs, with an idle host's if there is one, tell
more: a NIC that carries with neither neighbour is broken, whoever complained. What is only slow is told apart by the
probes that C4D has asked for.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

import msgspec

from c4bench.c4d.probing.probes import probe_outcomes, remaining_suspects
from c4bench.model.diagnosis import Cause, Component, Diagnosis, Syndrome
from c4bench.model.fabric import Nic

_SURE = 0.9
_TRIED = 0.95
# How much longer transfers are at least where a diagnosis does not say.
_TIMES = 1.1
# What was seen of the component itself.
_SEEN = (Cause.HOST_SILENT, Cause.PROCESS_STOPPED)
_HANGS = (Syndrome.COMMUNICATION_HANG, Syndrome.NON_COMMUNICATION_HANG)


def doubtful(found: Diagnosis) -> bool:
    """Whether it could be another component as well, and transfers could tell."""
    if found.syndrome not in _HANGS or found.component.kind == "job" or found.cause in _SEEN:
        return False
    return bool(found.alternatives) or found.confidence < _SURE


def pairs(nics: Iterable[Nic]) -> list[tuple[Nic, Nic]]:
    """Neighbours of a ring of NICs, one ring for each index, since rails need not be connected with each other."""
    rings: dict[int, list[Nic]] = {}
    for nic in nics:
        rings.setdefault(nic.index, []).append(nic)
    return [pair for ring in rings.values() if len(ring) > 2 for pair in zip(ring, ring[1:] + ring[:1], strict=True)]


def broken(failed: Iterable[tuple[Nic, Nic]]) -> set[str]:
    """NICs that carried with neither neighbour."""
    seen = Counter(nic.name for pair in failed for nic in pair)
    return {name for name, times in seen.items() if times > 1}


def settled(found: Diagnosis, failed: Collection[str], tried: Collection[str]) -> tuple[Diagnosis, ...]:
    """The diagnosis after NICs were tried, of which some failed: one for each that did; as it was where none decides.

    When most have failed it is the fabric, and nothing is learnt.
    """
    if not tried or 2 * len(failed) > len(tried):
        return (found,)
    if not failed:
        went = f"trials of all {len(tried)} NICs went through"
        left = tuple(part for part in (found.component, *found.alternatives) if part.kind != "nic")
        component, others = (left[0], left[1:]) if left else (found.component, found.alternatives)
        return (_changed(found, component, others, found.confidence, went),)
    nics = [Component("nic", name) for name in tried if name in failed]
    went = f"trials of {len(tried)} NICs: all went through but those of {', '.join(nic.name for nic in nics)}"
    return tuple(_changed(found, nic, (), max(found.confidence, _TRIED), went) for nic in nics)


def narrowed(found: Diagnosis, shares: Sequence[float]) -> Diagnosis:
    """The diagnosis after its probes, which came to these shares of their NICs' rates; as it was where none decides.

    What is left besides the component no transfer can tell from it.
    """
    suspects = (found.component, *found.alternatives)
    bad = probe_outcomes(shares, found.figures.get("times_as_long", _TIMES))
    left = remaining_suspects(suspects, found.probes, bad)
    if not left or len(left) == len(suspects):
        return found
    component, *others = (suspect for suspect in suspects if suspect in left)
    went = "probes, beside the best of them: " + ", ".join(
        f"{probe.source}>{probe.destination} {share / max(shares):.0%}"
        for probe, share in zip(found.probes, shares, strict=True)
    )
    return msgspec.structs.replace(
        found,
        component=component,
        alternatives=tuple(others),
        confidence=max(found.confidence, _TRIED),
        evidence=(*found.evidence, went),
        refuted_by=f"a probe at full rate across {component}",
    )


def _changed(
    found: Diagnosis, component: Component, alternatives: tuple[Component, ...], confidence: float, went: str
) -> Diagnosis:
    syndrome = Syndrome.COMMUNICATION_HANG if component.kind in ("nic", "path") else found.syndrome
    return msgspec.structs.replace(
        found,
        syndrome=syndrome,
        component=component,
        alternatives=alternatives,
        confidence=confidence,
        evidence=(*found.evidence, went),
    )
