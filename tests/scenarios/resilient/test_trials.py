"""A NIC fails in the middle of a collective: every element is exact, and it costs a fraction of a second."""

import random
import statistics
import time
from typing import NamedTuple

import pytest

from c4bench.model.measurement import Clock
from c4bench.workload.trials import Trial

SEEDS, NIGHTLY_SEEDS = 24, 300
SIZE_BYTES = 128 << 10
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce")
TOLD_S, SILENT_S = 0.050, 0.150


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
    """What the trials of this run came to."""
    return []


def seeds(count):
    """Seeds, those beyond every run's slice marked nightly."""
    return [pytest.param(seed, marks=[pytest.mark.nightly] if seed >= SEEDS else []) for seed in range(count)]


@pytest.mark.needs(hosts=8)
@pytest.mark.parametrize("seed", seeds(NIGHTLY_SEEDS))
def test_nic_dies_in_mid_operation(start, several_nics, inject, port_towards, uplinks, measure, tally, seed):
    """Whatever happens to a NIC, in whatever collective and at whatever time, every element of every rank is exact."""
    draw = random.Random(seed)
    name, kind = list(KINDS.items())[seed % len(KINDS)]
    collective = COLLECTIVES[seed % len(COLLECTIVES)]
    nic = draw.choice([nic for host in several_nics for nic in host.nics])
    place = {
        "nic": lambda: {"host": nic.host, "nic": nic.index},
        "port": lambda: {"at": port_towards(nic)},
        "uplink": lambda: {"at": draw.choice(uplinks)},
    }[kind.where]()
    ranks = start(several_nics)
    # Back to back: whenever the fault comes, something runs.
    ranks.give(Trial(collective, SIZE_BYTES, seconds=1.2, enough=9, fresh=True))
    time.sleep(draw.uniform(0, 1e-3))
    with inject(kind.fault, **place, **kind.parameters) as fault:
        accounts = ranks.take()
    exact, checked = sum(each.exact for each in accounts), sum(each.checked for each in accounts)
    spans = [sorted(each.spans + each.agreed) for each in accounts]
    hit = any(began < fault.onset_s < ended for own in spans for began, ended in own)
    died = sum(each.resilience.died for each in accounts)
    repeated = sum(each.resilience.repeated for each in accounts)
    tally.append((exact, checked))
    labels = {"kind": name, "collective": collective, "seed": seed}
    assert [each.error for each in accounts if each.error] == []
    measure("resilient.exact_fraction", exact / checked, equals=1, clock=Clock.NONE, **labels)
    measure("resilient.repeated", repeated, equals=0, clock=Clock.NONE, **labels)
    assert hit, "the fault hit no running operation"
    assert died, f"no rail died of {kind.fault}"
    pause_s = max(pause(own, fault.onset_s) for own in spans)
    measure("resilient.pause_s", pause_s, unit="s", at_most=kind.pause_s, **labels)


def pause(spans, onset_s):
    """How much longer than it should have the operation took that the fault hit.

    It should have taken as long as a healthy one for the part before the fault, and as a degraded one for the rest.
    """
    before = [ended - began for began, ended in spans if ended < onset_s] or [0.0]
    healthy_s = statistics.median(before)
    hit = [(began, ended) for began, ended in spans if ended >= onset_s]
    began, ended = max(hit, key=lambda span: span[1] - span[0], default=(0.0, 0.0))
    after = [each[1] - each[0] for each in hit if each[0] > ended] or [healthy_s]
    part = min(1.0, max(0.0, (onset_s - began) / healthy_s)) if healthy_s else 0.0
    return (ended - began) - part * healthy_s - (1 - part) * statistics.median(after)


@pytest.mark.needs(hosts=8)
def test_trials_come_to_this(several_nics, measure, tally):  # noqa: ARG001
    """Every trial of this run ended, without a hang, with every element exact."""
    if not tally:
        pytest.skip("no trial has run")
    measure("resilient.trials", len(tally), clock=Clock.NONE)
    measure("resilient.hangs", sum(not checked for _, checked in tally), equals=0, clock=Clock.NONE)


@pytest.mark.needs(hosts=8)
def test_corrupted_element_is_noticed(start, several_nics):
    """The check of every element notices when a single one is changed on purpose."""
    accounts = start(several_nics)(Trial("all_reduce", SIZE_BYTES, seconds=0.02, corrupt=True, fresh=True))
    assert sum(each.checked - each.exact for each in accounts) == 1
