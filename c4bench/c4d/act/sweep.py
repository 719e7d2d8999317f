"""A sweep of a job's NICs once something has been found slow: transfers on their own between all of them.

A NIC that is only a little slower than others is hidden by a job's own pattern: a late rank changes the times of
transfers, and with short, rare operations the busy time of a healthy NIC varies by chance.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence, Set
from itertools import chain, zip_longest

from c4bench.attribution.weigh import Blame, Cell, attribute_cells
from c4bench.c4d.act.flows import POLITE_SHARE
from c4bench.c4d.confidence import confidence
from c4bench.c4d.diagnosis import Finding
from c4bench.model.diagnosis import Cause, Component, ProbeFlow, Syndrome
from c4bench.model.fabric import Nic
from c4bench.model.recording import ProbeSweep

Step = tuple[ProbeFlow, ...]

# Each NIC is probed with so many others, in either direction: one of them may be bad as well.
_PARTNERS = 3
# How long a step lasts (s).
_STEP_S = 0.25
# C4D promises to find a slowdown of a tenth; a path over more hops is a few hundredths slower for single messages.
_SLOW_TIMES = 1.08


def tournament(hosts: Sequence[str]) -> list[list[tuple[str, str]]]:
    """Rounds in which each host meets one other, until each has met all (circle method); with an odd number one rests.

    A sender of one round receives in the next, so that both directions are measured.
    """
    places: list[str | None] = [*hosts, *([None] if len(hosts) % 2 else [])]
    rounds = []
    for _ in range(len(places) - 1):
        half = len(places) // 2
        met = [(a, b) for a, b in zip(places[:half], reversed(places[half:]), strict=True) if a and b]
        rounds += [met, [(b, a) for a, b in met]]
        places = [places[0], places[-1], *places[1:-1]]
    return rounds


def plan_sweep(nics: Iterable[Nic]) -> tuple[Step, ...]:
    """Steps in which no NIC is twice; every NIC meets some of its kind on other hosts, in both directions.

    Empty where there are too few of a kind, which is a NIC's number in its host and its plane.
    """
    kinds: dict[tuple[int, int], dict[str, Nic]] = {}
    for nic in nics:
        kinds.setdefault((nic.plane, nic.index), {})[nic.name] = nic
    steps = [_steps(alike) for alike in kinds.values() if len(alike) > _PARTNERS]
    return tuple(tuple(chain(*parts)) for parts in zip_longest(*steps, fillvalue=()))


def _steps(nics: Mapping[str, Nic]) -> list[Step]:
    # Of an odd number one rests in each round.
    rounds = tournament(sorted(nics))[: 2 * (_PARTNERS + len(nics) % 2)]
    return [tuple(_probe(nics[source], nics[destination]) for source, destination in step) for step in rounds]


def _probe(source: Nic, destination: Nic) -> ProbeFlow:
    # A NIC sends in half of the steps.
    rate_bps = 2 * POLITE_SHARE * min(source.rate_bps, destination.rate_bps)
    crosses = (Component("nic", source.name, "tx"), Component("nic", destination.name, "rx"))
    return ProbeFlow(source.name, destination.name, 0, rate_bps, _STEP_S, crosses)


def slow_nics(sweep: ProbeSweep, known: Set[str] = frozenset()) -> list[Finding]:
    """The NICs, or sides of NICs, whose probes took longer than others' with every partner, except those `known`.

    Failed probes say nothing about slowness. If hardly half are as fast as the best quarter, no probe does.
    """
    longer = _longer(sweep, known)
    return [_finding(blame, longer, sweep.at_s) for blame in _to_blame(longer)]


def unexplained(sweep: ProbeSweep) -> bool:
    """Whether a probe was slow and no NIC is to blame: a fault may have begun during the sweep."""
    longer = _longer(sweep)
    explained = {cell for blame in _to_blame(longer) for cell in blame.cells}
    return not _slow(longer) <= explained


def _longer(sweep: ProbeSweep, known: Set[str] = frozenset()) -> dict[Cell, float]:
    """How many times as long as usual probes took; empty where that cannot be told."""
    times: dict[Cell, float] = {
        (probe.source, probe.destination): 1 / share
        for probe, share in zip(sweep.probes, sweep.shares, strict=True)
        if share > 0 and known.isdisjoint((probe.source, probe.destination))
    }
    if len(times) < _PARTNERS:
        return {}
    usual = statistics.quantiles(times.values(), n=4)[0]
    longer = {cell: value / usual for cell, value in times.items()}
    # If hardly half of the probes are as fast as usual, another job shares the network.
    return longer if 2 * len(_slow(longer)) <= len(longer) else {}


def _slow(longer: Mapping[Cell, float]) -> set[Cell]:
    return {cell for cell, value in longer.items() if value > _SLOW_TIMES}


def _to_blame(longer: Mapping[Cell, float]) -> list[Blame]:
    """The NICs, or their sides, by which several probes are slow; what is on its own has no side effects."""
    slow = _slow(longer)
    blames = attribute_cells({cell: float(cell in slow) for cell in longer})
    return [blame for blame in blames if blame.component.kind == "nic" and len(blame.cells) > 1]


def _finding(blame: Blame, longer: Mapping[Cell, float], at_s: float) -> Finding:
    times = statistics.median(longer[cell] for cell in blame.cells)
    went = ", ".join(f"{'>'.join(cell)} {1 / longer[cell]:.0%}" for cell in blame.cells)
    return Finding(
        Syndrome.COMMUNICATION_SLOW,
        Cause.TRANSFER_SLOW,
        blame.component,
        at_s,
        confidence(share=blame.posterior.share),
        (f"transfers on their own, beside those of other NICs: {went}",),
        f"a probe at full rate across {blame.component}",
        {"slow_cells": float(len(blame.cells)), "times_as_long": times},
        posterior=blame.posterior,
    )
