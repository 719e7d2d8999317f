"""A NIC fails during a collective: every element is exact, and recovery takes a fraction of a second."""

import random
import statistics
import time
from collections import Counter
from typing import NamedTuple

import pytest

from c4bench.collective.migration import ANSWER_S
from c4bench.collective.options import FailureTimeouts
from c4bench.model.measurement import Clock
from c4bench.workload.trials import AGREE_EVERY, Trial

SEEDS, NIGHTLY_SEEDS = 12, 300
# An operation takes about 8 ms where a NIC does 100 Mbit/s; a fault may come at any moment of a few.
NIC_BYTES = 64 << 10
MOMENTS_S = 0.03
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce")
TOLD_S, SILENT_S = 0.050, 0.150
PROBE = FailureTimeouts().probe


class Span(NamedTuple):
    """When a rank began and ended an operation. Those of one `turn` are alike: they have one place in the schedule."""

    began_s: float
    ended_s: float
    turn: int

    @property
    def duration_s(self):
        """How long the rank was inside."""
        return self.ended_s - self.began_s


class Kind(NamedTuple):
    """A fault of the catalogue, its parameters, where it is, and the longest pause it may cost."""

    fault: str
    parameters: dict
    where: str
    pause_s: float


KINDS = {
    "NIC down": Kind("nic.down", {}, "nic", TOLD_S),
    "black hole": Kind("nic.blackhole", {"direction": "both"}, "nic", SILENT_S),
    "one direction": Kind("nic.blackhole", {"direction": "rx"}, "nic", SILENT_S),
    "ACKs only": Kind("link.acks_lost", {}, "uplink", SILENT_S),
    "flap": Kind("nic.flap", {"period_s": 0.15, "duty": 0.5, "count": 3}, "nic", TOLD_S),
    "leaf port": Kind("port.down", {}, "port", TOLD_S),
    "late packets": Kind("nic.delay", {"delay_s": 0.1, "direction": "tx"}, "nic", SILENT_S),
}


@pytest.fixture(scope="module")
def tally():
    """How many trials of this run began, and how many ended."""
    return Counter()


def seeds(count):
    """Seeds, those beyond every run's slice marked nightly."""
    return [pytest.param(seed, marks=[pytest.mark.nightly] if seed >= SEEDS else []) for seed in range(count)]


@pytest.mark.needs(hosts=4)
@pytest.mark.parametrize("seed", seeds(NIGHTLY_SEEDS))
def test_nic_dies_in_mid_operation(start, every_host, inject, port_towards, uplinks, measure, tally, retries, seed):
    """Any NIC fault at any time in any collective leaves every element of every rank exact."""
    draw = random.Random(seed)
    nics = len(every_host[0].nics)
    name, kind = list(KINDS.items())[seed % len(KINDS)]
    collective = COLLECTIVES[seed % len(COLLECTIVES)]
    nic = draw.choice([nic for host in every_host for nic in host.nics])
    place = {
        "nic": lambda: {"host": nic.host, "nic": nic.index},
        "port": lambda: {"at": port_towards(nic)},
        "uplink": lambda: {"at": draw.choice(uplinks)},
    }[kind.where]()
    ranks = start(every_host)
    # Back to back: whenever the fault comes, something runs.
    tally["began"] += 1
    ranks.give(Trial(collective, NIC_BYTES * nics, seconds=1.2, enough=9, fresh=True))
    time.sleep(draw.uniform(0, MOMENTS_S))
    with inject(kind.fault, **place, **kind.parameters) as fault:
        accounts = ranks.take()
    tally["ended"] += 1
    exact, checked = sum(each.exact for each in accounts), sum(each.checked for each in accounts)
    spans = [in_turn(each) for each in accounts]
    hit = any(span.began_s < fault.onset_s < span.ended_s for own in spans for span in own)
    died = sum(each.resilience.died for each in accounts)
    repeated = sum(each.resilience.repeated for each in accounts)
    labels = {"kind": name, "collective": collective, "seed": seed, "hosts": len(every_host), "nics": nics}
    assert [each.error for each in accounts if each.error] == []
    measure("resilient.exact_fraction", exact / checked, equals=1, clock=Clock.NONE, **labels)
    measure("resilient.repeated", repeated, equals=0, clock=Clock.NONE, **labels)
    assert hit, "the fault hit no running operation"
    assert died, f"no rail died of {kind.fault}"
    pause_s = max(pause(own, fault.onset_s) for own in spans)
    error_s = fault.clock_error_s + ranks.clock_error_s
    if kind.pause_s == SILENT_S:  # a probe must fail first
        labels |= retries.labels(PROBE.timeout, PROBE.retries, qp_patience_s=ANSWER_S)
    measure("resilient.pause_s", pause_s, unit="s", at_most=kind.pause_s, plus_minus=error_s, **labels)


def in_turn(account):
    """A rank's operations; what ranks agree by comes after every few, and waits for those that are still under way."""
    own = [Span(*span, step % AGREE_EVERY) for step, span in enumerate(account.spans)]
    return own + [Span(*span, AGREE_EVERY) for span in account.agreed]


def pause(spans, onset_s):
    """How much longer than like ones, at most, an operation took that ended after the fault, also the one hit."""
    judged = {span: excess_s(span, spans, onset_s) for span in spans}
    hit = [span for span in spans if span.began_s < onset_s <= span.ended_s]
    assert all(judged[span] is not None for span in hit), "no like operation came after one that the fault hit"
    return max(excess for excess in judged.values() if excess is not None)


def excess_s(span, spans, onset_s):
    """How much longer an operation took than it should have; None before the fault, or with no like one after it.

    It should have taken as long as a healthy one for the part before the fault, and as a degraded one for the rest.
    """
    alike = [other for other in spans if other.turn == span.turn]
    after = [other.duration_s for other in alike if other.began_s > span.ended_s]
    if span.ended_s < onset_s or not after:
        return None
    degraded_s = statistics.median(after)
    healthy_s = statistics.median([other.duration_s for other in alike if other.ended_s < onset_s] or [degraded_s])
    part = min(1.0, max(0.0, (onset_s - span.began_s) / healthy_s))
    return span.duration_s - part * healthy_s - (1 - part) * degraded_s


@pytest.mark.needs(hosts=4)
def test_trials_come_to_this(every_host, measure, tally):  # noqa: ARG001
    """Every trial of this run that began has ended: none hangs."""
    if not tally["began"]:
        pytest.skip("no trial has run")
    measure("resilient.trials", tally["began"], clock=Clock.NONE)
    measure("resilient.hangs", tally["began"] - tally["ended"], equals=0, clock=Clock.NONE)


@pytest.mark.needs(hosts=4)
def test_corrupted_element_is_noticed(start, every_host):
    """The check detects a single element changed on purpose."""
    accounts = start(every_host)(Trial("all_reduce", 2 * NIC_BYTES, seconds=0.02, corrupt=True, fresh=True))
    assert sum(each.checked - each.exact for each in accounts) == 1
