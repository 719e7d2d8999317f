"""Utilisation agrees with schedules worked out by hand, with closed forms, and with a simulation of every node."""

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from c4bench.cost.utilisation import (
    Compute,
    Granularity,
    Schedule,
    data_parallel,
    diloco,
    first_on_grid,
    needed_bandwidth,
    streaming,
    utilisation,
)

# Five nodes of a second each: forward 0, forward 1, activations 1, parameters 1, parameters 0.
TWO = Compute.equal(2, 5.0)
STEP = {"sends": Granularity.STEP, "waits": Granularity.STEP}


def at_one_bps(compute, bits, schedule, latency_s=0.0):
    """The utilisation where a bit takes a second."""
    return float(utilisation(compute, bits, schedule, 1.0, latency_s))


@pytest.mark.parametrize(
    ("bits", "schedule", "latency_s", "period_s"),
    [
        # Layer 1 is sent at 4 s, layer 0 at 5 s. With 2 s each, layer 0 waits for the link until 6 s, arrives at 8 s.
        ((2, 2), data_parallel(2), 0.0, 8.0),
        # The link is free again before layer 0 is sent, which arrives at 5.5 s.
        ((0.5, 0.5), data_parallel(2), 0.0, 5.5),
        # A layer 0 without bits still waits in the queue behind layer 1, which ends at 8 s.
        ((0, 4), data_parallel(2), 0.0, 8.0),
        # Latency delays the arrival, to 8.25 s, but does not occupy the link.
        ((2, 2), data_parallel(2), 0.25, 8.25),
        # Two steps, of which one is followed by the wait of 3 s.
        ((2, 2), diloco(2, 2), 0.0, 13.0),
        # Layer 0 arrives 1 s after step 0. Layer 1, sent 1 s before step 1 ends, arrives as it does.
        ((1, 1), streaming(2, 2, 2), 0.0, 11.0),
        # Layer 0 arrives 3 s after step 0. Layer 1 arrives 2 s after step 1, 1 s after its forward pass could start.
        ((3, 3), streaming(2, 2, 2), 0.0, 14.0),
        # With an overlap of a step there is time until 10 s and 15 s; both arrive by 8 s and 12 s.
        ((3, 3), streaming(2, 2, 2, overlap=1), 0.0, 10.0),
        # 7 s are sent in 5 s of each step: the link is never idle.
        ((7, 7), streaming(2, 2, 2, overlap=1), 0.0, 14.0),
        # After the step both are sent, for 4 s, and nothing is computed meanwhile.
        ((2, 2), Schedule(1, (0, 0), **STEP), 0.0, 9.0),
        ((2, 2), Schedule(1, (0, 0), **STEP), 1.5, 10.5),
        # Sent after step 0, needed before step 2: 4 s + 1.5 s, half a second more than the step in between.
        ((2, 2), Schedule(2, (0, 0), overlap=1, **STEP), 1.5, 10.5),
    ],
)
def test_two_layers_by_hand(bits, schedule, latency_s, period_s):
    """A period of two layers takes as long as worked out by hand."""
    assert at_one_bps(TWO, bits, schedule, latency_s) == pytest.approx(5 * schedule.period / period_s)


def test_layers_of_unlike_times():
    """A large embedding that computes little is sent last and decides: 1 s + 2 s of work, 6 s of sending."""
    compute = Compute((0.25, 1.0), (0.0, 1.0), (0.25, 0.5))
    # Layer 1 is sent at 2.75 s and takes 1 s; the embedding is sent at 3.75 s and arrives at 8.75 s.
    assert at_one_bps(compute, (5, 1), data_parallel(2)) == pytest.approx(3 / 8.75)


@pytest.mark.parametrize("schedule", [data_parallel(9), diloco(9, 20), streaming(9, 3, 20), streaming(9, 3, 20, 4)])
def test_an_infinite_bandwidth_costs_nothing(schedule):
    """Without transfer times every method computes all the time, unless there is latency to wait for."""
    compute = Compute.equal(9, 2.0)
    assert float(utilisation(compute, [1e9] * 9, schedule, math.inf)) == pytest.approx(1.0, abs=1e-12)
    latency_s = 2.0 / 26
    waits = len(set(schedule.offsets)) if not schedule.overlap else 0
    late = float(utilisation(compute, [1e9] * 9, schedule, math.inf, latency_s))
    assert late <= 1.0
    if waits == 1:  # layer 0 ends a step and begins the next, so that all of its latency shows
        assert late == pytest.approx(schedule.period * 2.0 / (schedule.period * 2.0 + latency_s))


@given(layers=st.integers(2, 60), period=st.integers(1, 200), transfer=st.floats(2.0, 1e4))
def test_plain_diloco_has_a_closed_form(layers, period, transfer):
    """Where a layer's transfer takes two nodes' time or more the link is busy from the first layer on.

    That layer is sent after L + 2 of 3L - 1 nodes, so L transfers end L x - (2L - 3) nodes after the step.
    """
    compute = Compute.equal(layers, 3.0 * layers - 1)
    nodes = period * (3 * layers - 1)
    expected = nodes / (nodes + layers * transfer - (2 * layers - 3))
    assert at_one_bps(compute, [transfer] * layers, diloco(layers, period)) == pytest.approx(expected, rel=1e-9)


def test_a_saturated_link_carries_all_it_can():
    """A fragment is sent 10 steps after another and needed 12 later: a link that is too slow is never idle."""
    schedule = streaming(12, 4, 40, overlap=12)
    shares = utilisation(Compute.equal(12, 1.0), [1.0] * 12, schedule, [0.003, 0.03, 0.15])
    assert shares == pytest.approx([0.01, 0.1, 0.5], rel=1e-6)


def test_a_queue_that_grows_slowly():
    """A link that lacks a millisecond in 20 s delays nothing for 5,000 periods, and then all of them."""
    assert at_one_bps(TWO, (10.0005, 10.0005), streaming(2, 2, 4, overlap=3)) == pytest.approx(20 / 20.001, rel=1e-9)


def node_by_node(compute, bits, schedule, latency_s, periods=120):
    """The same by simulating every node of every step, one after the other; the mean of the later half's periods."""
    now = free = 0.0
    arrived, ends = {}, []
    for step in range(periods * schedule.period):
        for layer in range(len(bits)):
            if schedule.waits is Granularity.LAYER:
                now = max(now, arrived.get((layer, step - 1 - schedule.overlap), 0.0))
            elif layer == 0:
                needed = [arrived.get((each, step - 1 - schedule.overlap), 0.0) for each in range(len(bits))]
                now = max(now, *needed)
            now += compute.forward_s[layer]
        ended = []
        for layer, offset in reversed(list(enumerate(schedule.offsets))):
            now += compute.activation_s[layer] + compute.parameter_s[layer]
            if step % schedule.period == offset:
                ended.append((layer, now))
        for layer, sent in ended:
            free = max(free, now if schedule.sends is Granularity.STEP else sent) + bits[layer]
            arrived[layer, step] = free + latency_s
        if (step + 1) % schedule.period == 0:
            ends.append(now)
    half = periods // 2
    return schedule.period * compute.step_s / ((ends[-1] - ends[half - 1]) / (periods - half))


def random_case(draws):
    layers, period = draws.randint(1, 5), draws.randint(1, 6)

    def times():
        return tuple(draws.choice([0.0, 0.5, 1.0, 2.0]) + 0.01 for _ in range(layers))

    schedule = Schedule(
        period,
        tuple(draws.randrange(period) for _ in range(layers)),
        draws.randrange(period),
        draws.choice(list(Granularity)),
        draws.choice(list(Granularity)),
    )
    bits = [draws.choice([0.0, 1.0, 5.0, 20.0]) for _ in range(layers)]
    return Compute(times(), times(), times()), bits, schedule, draws.choice([0.0, 0.0, 0.3, 2.0, 10.0])


@pytest.mark.parametrize("seed", range(8))
def test_events_agree_with_every_node(seed):
    """Layers of any times and sizes, schedules and latencies: as if every node were simulated for a long time."""
    draws = random.Random(seed)
    for _ in range(20):
        compute, bits, schedule, latency_s = case = random_case(draws)
        expected = node_by_node(compute, bits, schedule, latency_s)
        assert at_one_bps(compute, bits, schedule, latency_s) == pytest.approx(expected, rel=1e-3), case


def test_periods_that_repeat_in_pairs():
    """Where every other period is longer, here 40 s and 44 s, the mean of both counts and not the last one."""
    compute = Compute((3.0, 1.0), (1.0, 1.0), (1.0, 2.0))
    schedule = Schedule(4, (1, 0), overlap=3, waits=Granularity.STEP)
    share = at_one_bps(compute, [20.0, 20.0], schedule, latency_s=10.0)
    assert share == pytest.approx(36 / 42)
    assert share == pytest.approx(node_by_node(compute, [20.0, 20.0], schedule, 10.0))


@given(seed=st.integers(0, 10**6))
def test_more_bandwidth_or_overlap_never_hurts(seed):
    """Utilisation does not fall as the bandwidth grows, nor with a longer overlap, nor with less latency."""
    draws = random.Random(seed)
    compute, bits, schedule, latency_s = random_case(draws)
    rates = np.geomspace(0.01, 100, 30)
    shares = utilisation(compute, bits, schedule, rates, latency_s)
    assert (np.diff(shares) > -1e-6).all()
    assert (utilisation(compute, bits, schedule, rates) > shares - 1e-6).all()
    if schedule.overlap + 1 < schedule.period:
        longer = Schedule(schedule.period, schedule.offsets, schedule.overlap + 1, schedule.sends, schedule.waits)
        assert (utilisation(compute, bits, longer, rates, latency_s) > shares - 1e-6).all()


@pytest.mark.parametrize("latency_s", [0.0, 0.4])
def test_the_needed_bandwidth_is_the_least(latency_s):
    """At the needed bandwidth the wanted utilisation is reached; at a millionth less it is not."""
    compute, bits, schedule = Compute.equal(6, 1.0), [3.0] * 6, streaming(6, 3, 10)
    wanted = (0.3, 0.6, 0.8)
    for goal, needed in zip(wanted, needed_bandwidth(compute, bits, schedule, wanted, latency_s), strict=True):
        at, below = utilisation(compute, bits, schedule, [needed, needed * (1 - 1e-6)], latency_s)
        assert below < goal <= at


def test_a_utilisation_that_latency_rules_out():
    """Where latency alone costs too much no bandwidth is enough, on any grid."""
    needed = needed_bandwidth(TWO, [1.0, 1.0], data_parallel(2), [0.4, 0.9], latency_s=5.0)
    assert needed[0] < math.inf
    assert needed[1] == math.inf
    assert list(first_on_grid(needed, [0.1, needed[0], 1e12])) == [1, 3]


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda: Compute.equal(0, 1.0), "0 layers"),
        (lambda: Compute.equal(3, 0.0), "0.0 s are no model"),
        (lambda: Compute((1.0,), (), (1.0,)), "three times"),
        (lambda: Compute((1.0,), (0.0,), (-1.0,)), "not negative"),
        (lambda: Compute((), (), ()), "three times"),
        (lambda: Compute((0.0,), (0.0,), (0.0,)), "must take time"),
        (lambda: utilisation(TWO, [1.0], data_parallel(2), 1.0), "2 layers compute, 1 have a size and 2 an offset"),
        (lambda: utilisation(TWO, [1.0, -1.0], data_parallel(2), 1.0), "0 bit or more"),
        (lambda: utilisation(TWO, [1.0, 1.0], data_parallel(2), [1.0, 0.0]), "more than 0 bit/s"),
        (lambda: utilisation(TWO, [1.0, 1.0], data_parallel(2), math.nan), "more than 0 bit/s"),
        (lambda: utilisation(TWO, [1.0, 1.0], data_parallel(2), 1.0, -0.1), "latency"),
        (lambda: needed_bandwidth(TWO, [1.0, 1.0], data_parallel(2), [1.0]), "between 0 and 1"),
        (lambda: needed_bandwidth(TWO, [0.0, 0.0], data_parallel(2), [0.5]), "nothing is sent"),
    ],
)
def test_what_is_no_model_is_refused(act, words):
    """Layers, times, sizes, rates and goals that mean nothing are errors, not figures."""
    with pytest.raises(ValueError, match=words):
        act()
