"""Whether a diagnosis is to be looked into before it is acted on, and what trials with a third NIC make of it.

When a connection dies, the ranks at both its ends exit within milliseconds and every other rank with them: who went
first says little. What does tell is a transfer between each of the job's NICs and one on an idle host, which shares
nothing with any of them: what does not carry is broken, whoever complained.
"""

from collections.abc import Collection

import msgspec

from c4bench.model.diagnosis import Component, Diagnosis, Syndrome

_SURE = 0.9
_TRIED = 0.95
_HANGS = (Syndrome.COMMUNICATION_HANG, Syndrome.NON_COMMUNICATION_HANG)


def doubtful(found: Diagnosis) -> bool:
    """Whether it could be another component as well, and transfers could tell."""
    if found.syndrome not in _HANGS or found.component.kind == "job":
        return False
    return bool(found.alternatives) or found.confidence < _SURE


def settled(found: Diagnosis, failed: Collection[str], tried: Collection[str]) -> tuple[Diagnosis, ...]:
    """The diagnosis after NICs were tried, of which some failed: one for each that did; as it was where none decides.

    When most have failed it is the third NIC, or the fabric, and nothing is learnt.
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
