"""The cost model of degraded all-reduces, held against the paper's closed forms and against itself."""

import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from c4bench.sim import degraded


@given(servers=st.integers(3, 128), nics=st.sampled_from([4, 8, 16]), chunks=st.sampled_from([1, 2, 4, 8, 16]))
def test_one_degraded_server_costs_what_the_paper_says(servers, nics, chunks):
    """With one NIC lost and Y = X the flows take what the closed form says, less what is hidden by sharing."""
    x = 1 / nics
    flows = degraded.split([x] + [0.0] * (servers - 1), x, chunks)
    closed = degraded.paper(servers, x, chunks)
    assert flows == pytest.approx(closed, rel=0.02)


def test_the_reproduction_s_figures():
    """Six ranks that lose a third of one host's bandwidth: what the authors' reproduction measured, within 1 %."""
    for chunks, measured in ((1, 1.599), (2, 1.450), (4, 1.376), (8, 1.340), (16, 1.328)):
        assert degraded.paper(6, 1 / 3, chunks) == pytest.approx(measured, rel=0.01)
    assert degraded.balance([1 / 3, 0, 0]) == pytest.approx(1.5)


@given(st.lists(st.sampled_from([0.0, 0.125, 0.25, 0.5]), min_size=2, max_size=40))
def test_the_best_way_is_never_worse_than_balance(lost):
    """Whatever has failed, what is chosen costs no more than the plain ring, and never less than nothing."""
    found = degraded.cheapest_strategy(lost)
    assert 1 - 1e-9 <= found.relative <= degraded.balance(lost) + 1e-9


def test_what_is_no_fraction_is_refused():
    """A server cannot have lost everything, nor more."""
    for lost in ([], [1.0], [-0.1, 0.0]):
        with pytest.raises(ValueError, match="not fractions"):
            degraded.balance(lost)


@pytest.mark.parametrize("gpus", [512, 1024])
def test_steps_at_scale(gpus):
    """From one failure to ten a step's overhead grows little from one percent, and stays below the plain ring's."""
    servers, draws = gpus // 8, 40
    noise = random.Random(gpus)
    overheads = {}
    for failures in (1, 3, 10):
        chosen, plain = [], []
        for _ in range(draws):
            lost = degraded.spread(noise.sample(range(servers * 8), failures), servers, 8)
            chosen.append(degraded.step_overhead(degraded.cheapest_strategy(lost).relative, 0.2, 0.9))
            plain.append(degraded.step_overhead(degraded.balance(lost), 0.2, 0.9))
        overheads[failures] = statistics.mean(chosen)
        assert statistics.mean(chosen) < statistics.mean(plain)
    assert 0.01 < overheads[1] < overheads[10] < 0.045


@given(
    servers=st.integers(4, 128),
    losers=st.lists(st.integers(1, 8), max_size=3, unique=True),
    nics=st.sampled_from([4, 8]),
)
def test_rings_beside_each_other_reduce_less_than_the_whole(servers, losers, nics):
    """Whatever rings there are, each reduces a part, and together less than all; without any it is balance."""
    rings = [degraded.Ring(min(count, servers - 2), 1 / nics) for count in losers]
    left = 1 - len(rings) / nics
    found = degraded.nest(servers, left, rings, 32)
    assert all(part > 0 for part in found.parts)
    assert sum(found.parts) < 1
    assert found.relative > 1 - 1e-9
    assert degraded.nest(servers, left, [], 32).relative == pytest.approx(1 / left)


def test_few_of_many_degraded_servers_cost_as_one():
    """Two of 128 servers that have lost one NIC of eight cost what one does: less than the paper says of one."""
    one, two = (nested(128, 7, (count, 1)) for count in (1, 2))
    assert one == pytest.approx(two, rel=0.002)
    assert 1 < two < degraded.paper(128, 1 / 8, 32)


def test_half_of_few_servers_is_left_to_the_ring():
    """With two of four degraded the other two would have to give as much as is won."""
    assert nested(4, 4, (2, 4)) > 2


@pytest.mark.parametrize("servers", [8, 64])
def test_a_ring_for_each_loss_costs_less_than_one_for_what_is_common(servers):
    """Of two servers that have lost one and two NICs of eight, both are gone beside, and one of them once more."""
    both = nested(servers, 6, (2, 1), (1, 1))
    assert both < nested(servers, 6, (1, 1)) < nested(servers, 6, (2, 1)) < 8 / 6


def nested(servers, left, *rings):
    """The relative cost where servers have eight NICs: of the ring of all by so many, and rings without some."""
    return degraded.nest(servers, left / 8, [degraded.Ring(count, nics / 8) for count, nics in rings], 32).relative
