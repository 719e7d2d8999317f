"""A NIC fails during a collective: every element is exact, and recovery takes a fraction of a second."""

import random
import statistics
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import pytest

from c4bench.collective.migration import ANSWER_S
from c4bench.collective.options import FailureTimeouts
from c4bench.model.measurement import Clock
from c4bench.workload.trials import AGREE_EVERY, Trial

SEEDS, NIGHTLY_SEEDS = 6, 300
# An operation takes about 8 ms where a NIC does 100 Mbit/s; a fault may come at any moment of a few.
NIC_BYTES = 64 << 10
MOMENTS_S = 0.03
# One takes 2 ms where eight GPUs have NICs of 25 Gbit/s. Operations begin soon before the fault, for they cost more.
GPU_SEEDS = range(62_101, 62_201)
GPU_NIC_BYTES = 4 << 20
LEAD_S = 0.05
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
    drawn = Drawn(seed, every_host)
    kind = drawn.kind
    place = {
        "nic": drawn.place,
        "port": lambda: {"at": port_towards(drawn.nic)},
        "uplink": lambda: {"at": drawn.draw.choice(uplinks)},
    }[kind.where]()
    ranks = start(every_host)
    # Back to back: whenever the fault comes, something runs.
    tally["began"] += 1
    ranks.give(Trial(drawn.collective, NIC_BYTES * drawn.nics, seconds=1.2, enough=9, fresh=True))
    time.sleep(drawn.draw.uniform(0, MOMENTS_S))
    with inject(kind.fault, **place, **kind.parameters) as fault:
        accounts = ranks.take()
    tally["ended"] += 1
    judge(accounts, fault, ranks, measure, retries, drawn)


@pytest.mark.nightly
@pytest.mark.needs(hosts=2)
@pytest.mark.parametrize("seed", GPU_SEEDS)
def test_nic_dies_under_gpus(start, every_host, inject, port_towards, measure, tally, retries, seed):
    """So it is where each host has a rank for each GPU, with NICs of 25 Gbit/s and more."""
    if not every_host[0].gpus:
        pytest.skip("no-gpus: this topology has no GPUs; try --c4-topology tests/scenarios/resilient/gpu-hosts.yml")
    drawn = Drawn(seed, every_host)
    kind = drawn.kind
    # Rails cross no links between switches.
    place = drawn.place() if kind.where == "nic" else {"at": port_towards(drawn.nic)}
    ranks = start(every_host, len(every_host[0].gpus), chunk_bytes=0, window=0)
    tally["began"] += 1
    ranks(Trial(drawn.collective, NIC_BYTES * drawn.nics, seconds=0.0, fresh=True))
    begin_s = time.time() + LEAD_S + drawn.draw.uniform(0, MOMENTS_S)

    def begin():
        time.sleep(begin_s - time.time())
        ranks.give(Trial(drawn.collective, GPU_NIC_BYTES * drawn.nics, seconds=1.2, enough=9))

    with ThreadPoolExecutor(1) as pool:
        beginning = pool.submit(begin)
        if kind.where == "port":  # it goes down at once
            beginning.result()
            time.sleep(drawn.draw.uniform(0, MOMENTS_S))
        with inject(kind.fault, **place, **kind.parameters) as fault:
            beginning.result()
            accounts = ranks.take()
    tally["ended"] += 1
    judge(accounts, fault, ranks, measure, retries, drawn)


class Drawn:
    """What a seed draws: a fault, a collective, and a NIC."""

    def __init__(self, seed, hosts):
        self.seed, self.draw = seed, random.Random(seed)
        self.hosts, self.nics = len(hosts), len(hosts[0].nics)
        self.name, self.kind = list(KINDS.items())[seed % len(KINDS)]
        self.collective = COLLECTIVES[seed % len(COLLECTIVES)]
        self.nic = self.draw.choice([nic for host in hosts for nic in host.nics])

    def place(self):
        """Where a fault of the NIC is."""
        return {"host": self.nic.host, "nic": self.nic.index}


def judge(accounts, fault, ranks, measure, retries, drawn):
    """All is exact, the fault has hit an operation and a rail, and the pause was short."""
    kind = drawn.kind
    exact, checked = sum(each.exact for each in accounts), sum(each.checked for each in accounts)
    spans = [in_turn(each) for each in accounts]
    hit = any(span.began_s < fault.onset_s < span.ended_s for own in spans for span in own)
    died = sum(each.resilience.died for each in accounts)
    repeated = sum(each.resilience.repeated for each in accounts)
    labels = {"kind": drawn.name, "collective": drawn.collective, "seed": drawn.seed}
    labels |= {"hosts": drawn.hosts, "nics": drawn.nics, "ranks": ranks.size}
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
