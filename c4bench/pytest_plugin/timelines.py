"""The timeline of each fault that a scenario has injected under C4D's eyes, for the report."""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from c4bench.inject.protocol import Applied
from c4bench.model.diagnosis import Component, Diagnosis, Syndrome
from c4bench.record.artefacts import Faults, FaultTimeline


def timelines(faults: Sequence[Applied], diagnoses: Iterable[Diagnosis], links: Mapping[str, str]) -> Faults:
    """One timeline for each fault that is to be diagnosed; a diagnosis is about the newest fault before its alarm.

    `links` has the names of links by address.
    """
    found = tuple(diagnoses)
    onsets_s = [fault.onset_s - fault.onset_bound_s - fault.clock_error_s for fault in faults]
    drawn = []
    for fault, (since_s, until_s) in zip(faults, pairwise([*onsets_s, math.inf]), strict=True):
        if fault.target is not None and fault.syndrome is not None:
            about = [one for one in found if since_s <= one.alarmed_s < until_s]
            drawn.append(_timeline(fault, fault.target, fault.syndrome, about, links))
    return Faults(tuple(drawn))


def _timeline(
    fault: Applied, target: Component, expected: Syndrome, about: Sequence[Diagnosis], links: Mapping[str, str]
) -> FaultTimeline:
    """The fault with the diagnosis that is right, else with the first one."""
    right = next((one for one in about if (one.syndrome, one.component) == (expected, target)), None)
    shown = right or next(iter(about), None)
    return FaultTimeline(
        name=fault.fault,
        target=target.named(links),
        expected=expected,
        onset_s=fault.onset_s,
        observed_s=fault.observed_s,
        alarmed_s=shown.alarmed_s if shown else None,
        named_s=shown.named_s if shown else None,
        diagnosis=f"{shown.syndrome}: {shown.component.named(links)}" if shown else "",
        correct=right is not None,
    )
