"""A NIC is known to be slow by how long it is busy, whatever the order of transfers."""

import itertools
import math
import random

import pytest

from c4bench.c4d.network.cell_index import CellIndex
from c4bench.c4d.network.nic_utilisation import NicUtilisation
from c4bench.c4d.thresholds import BASELINE_SETTLED_SPANS, NAME_SPANS, SLIGHT
from c4bench.model.diagnosis import Component

NICS = [f"h{host}/0" for host in range(8)]
PAIRS = list(itertools.permutations(NICS, 2))


def _even(draw):
    """What an all-to-all costs where now this transfer meets others and now that."""
    return {pair: draw.choice([1.0, 1.0, 1.5, 2.0]) for pair in PAIRS}


def _taught(ways, seed=1, spans=2 * BASELINE_SETTLED_SPANS):
    draw, nics = random.Random(seed), NicUtilisation(ways)
    for _ in range(spans):
        nics.learn(_measured(ways, _even(draw)))
    return nics


def _measured(ways, costs):
    return ways.values_of({(*pair, "1"): cost for pair, cost in costs.items()})


def _evaluate(nics, index, costs, opened_s, links=None):
    """The cases of a span; a transfer that meets no other costs 1, which is every cell's floor."""
    departures = {pair: math.log(cost) for pair, cost in costs.items()}
    return nics.evaluate(_measured(index, costs), _measured(index, departures), opened_s, links or {})


def _slow(costs, nic, sending, receiving):
    """Its data take longer, and so does what waits for its acknowledgements."""
    factor = {pair: sending if pair[0] == nic else receiving if pair[1] == nic else 1.0 for pair in costs}
    return {pair: cost * factor[pair] for pair, cost in costs.items()}


@pytest.mark.parametrize("seed", range(4))
def test_transfers_that_meet_by_chance_are_no_slow_nic(seed):
    """Five hundred spans of an all-to-all blame nobody."""
    ways, draw = CellIndex(), random.Random(100 + seed)
    nics = _taught(ways, seed)
    assert [_evaluate(nics, ways, _even(draw), float(span)) for span in range(500)] == [[]] * 500


def test_a_slow_nic_is_known_among_transfers_that_meet():
    """It is named alone within eight spans, with its onset; a host's link that only its data cross might be it, too."""
    ways, draw = CellIndex(), random.Random(3)
    nics = _taught(ways)
    links = {(*pair, "1"): (f"{pair[0]} up", f"{pair[1]} down") for pair in PAIRS}
    for span in range(20):
        _evaluate(nics, ways, _even(draw), float(span), links)
    for span in range(20, 28):
        found = _evaluate(nics, ways, _slow(_even(draw), "h3/0", 3.0, 1.0), float(span), links)
    (case,) = found
    assert (case.blame.component, case.onset_s) == (Component("nic", "h3/0", "tx"), 20.0)
    assert case.blame.alternatives == (Component("link", "h3/0 up"),)
    assert case.least == pytest.approx(math.log(3), abs=0.3)


def test_a_slow_path_is_no_slow_nic():
    """One cell of a row and a column, however slow, says nothing of either."""
    ways, draw = CellIndex(), random.Random(4)
    nics = _taught(ways)
    costs = [_even(draw) | {("h1/0", "h2/0"): 50.0} for _ in range(20)]
    assert [_evaluate(nics, ways, span, 0.0) for span in costs] == [[]] * 20


def _cases_of_three(sent):
    """The cases of a NIC that sends to three others, two of them by one link, and receives from three as usual.

    `sent` are the costs of what it sends; the other NICs exchange with each other as usual.
    """
    index, draw = CellIndex(), random.Random(12)
    nics, others = NicUtilisation(index), NICS[1:4]
    pairs = [("h0/0", nic) for nic in others] + [(nic, "h0/0") for nic in others]
    pairs += list(itertools.permutations(NICS[4:], 2))
    links = {("h0/0", nic, "1"): ("up", "spine" if nic != "h3/0" else "leaf", f"{nic} down") for nic in others}
    for _ in range(2 * BASELINE_SETTLED_SPANS):
        nics.learn(_measured(index, {pair: draw.uniform(1.0, 1.02) for pair in pairs}))
    for span in range(8):
        costs = {pair: draw.uniform(1.0, 1.02) for pair in pairs} | dict(zip(pairs, sent, strict=False))
        cases = _evaluate(nics, index, costs, float(span), links)
    return [case.blame.component for case in cases]


def test_a_nic_with_two_of_three_paths_over_a_slow_link_is_no_slow_nic():
    """What it sends by another link is hardly slower, so the NIC itself is not."""
    assert _cases_of_three([3.0, 3.0, 1.2]) == []


def test_a_nic_whose_three_paths_are_slow_is_a_slow_nic():
    """A link that two of them cross does not explain the third."""
    assert _cases_of_three([3.0, 3.0, 2.5]) == [Component("nic", "h0/0", "tx")]


def _named_beside_a_slow_receiver(factors):
    """The NICs named in spans of a regular job; h5/0 receives at an eighth of its rate, h2/0 is `factors` slower.

    All other transfers take 1.1 to 1.15 times as long, because they wait for those of h5/0.
    """
    index, named, draw = CellIndex(), set(), random.Random(11)
    nics = NicUtilisation(index)
    for _ in range(2 * BASELINE_SETTLED_SPANS):
        nics.learn(_measured(index, {pair: draw.uniform(1.0, 1.02) for pair in PAIRS}))
    for span, factor in enumerate(factors):
        costs = {pair: draw.uniform(1.1, 1.15) for pair in PAIRS}
        costs = _slow(_slow(costs, "h5/0", 1.0, 8.0), "h2/0", factor, factor)
        cases = _evaluate(nics, index, costs, float(span))
        named |= {case.blame.component.name for case in cases if case.spans >= NAME_SPANS}
    return named


def test_what_a_slow_nic_adds_to_all_others_is_evidence_against_none():
    """A healthy NIC that waits longer than the others in one span is not named with the slow one."""
    assert _named_beside_a_slow_receiver([1.0, 1.0, 1.0, 1.4]) == {"h5/0"}


def test_a_second_slow_nic_is_named_beside_what_the_first_adds_to_all():
    """A NIC at two thirds of its rate stands out of the others, which wait for a slower one."""
    assert _named_beside_a_slow_receiver([1.5] * 4) == {"h5/0", "h2/0"}


def test_a_second_nic_that_is_hardly_busier_than_most_is_not_named():
    """All but the slow one are busier by a little, and one of them by twice that."""
    index, draw = CellIndex(), random.Random(5)
    nics = NicUtilisation(index)
    for _ in range(2 * BASELINE_SETTLED_SPANS):
        nics.learn(_measured(index, {pair: draw.uniform(1.0, 1.001) for pair in PAIRS}))
    for span in range(8):
        costs = {pair: draw.uniform(1.0, 1.001) * math.exp(0.3 * SLIGHT) for pair in PAIRS}
        costs = _slow(_slow(costs, "h5/0", 1.0, 8.0), "h2/0", *[math.exp(0.4 * SLIGHT)] * 2)
        (case,) = _evaluate(nics, index, costs, float(span))
    assert case.blame.component == Component("nic", "h5/0", "rx")


def test_what_another_job_makes_slow_is_learnt_anew():
    """Behind that nobody is blamed before enough is known, and then for what is slower still."""
    ways, draw = CellIndex(), random.Random(8)
    nics = _taught(ways)
    nics.forget()
    for _ in range(BASELINE_SETTLED_SPANS):
        slow = _measured(ways, _slow(_even(draw), "h3/0", 3.0, 3.0))
        assert nics.evaluate(slow, slow, 0.0, {}) == []
        nics.learn(slow)
    assert nics.evaluate(slow, slow, 0.0, {}) == []
    assert nics.evaluate_uneven(_measured(ways, _slow(_even(draw), "h3/0", 20.0, 20.0)), 0.0, {})


@pytest.mark.parametrize("seed", range(8))
def test_another_order_of_transfers_is_no_slow_nic(seed):
    """Transfers that meet for good, as a late rank makes them, blame nobody."""
    ways, draw = CellIndex(), random.Random(seed)
    nics, lasting = _taught(ways), _even(draw)
    assert [nics.evaluate_uneven(_measured(ways, lasting), float(span), {}) for span in range(20)] == [[]] * 20


@pytest.mark.parametrize(("sending", "receiving", "side"), [(3.0, 3.0, ""), (4.0, 1.0, "tx"), (1.0, 4.0, "rx")])
def test_a_slow_nic_is_known_in_another_order(sending, receiving, side):
    """It is busy longer, on the side that is said where one is as usual; with its onset, and span after span."""
    ways, draw = CellIndex(), random.Random(5)
    nics, lasting = _taught(ways), _even(draw)
    slow = _slow(lasting, "h3/0", sending, receiving)
    for span in range(3):
        (busy,) = nics.evaluate_uneven(_measured(ways, slow), 10.0 + span, {})
        assert (busy.blame.component, busy.onset_s, busy.spans) == (Component("nic", "h3/0", side), 10.0, span + 1)


def test_two_slow_nics_are_both_known():
    """What is left without the cells of the worst shows the next."""
    ways, draw = CellIndex(), random.Random(6)
    nics, costs = _taught(ways), _even(draw)
    for nic, factor in (("h1/0", 20.0), ("h6/0", 3.0)):
        costs = _slow(costs, nic, factor, factor)
    assert [busy.blame.component.name for busy in nics.evaluate_uneven(_measured(ways, costs), 0.0, {})] == [
        "h1/0",
        "h6/0",
    ]


def test_nobody_is_blamed_for_what_all_are():
    """A whole leaf that is slow, or a job that has just begun, shows no NIC."""
    ways, draw = CellIndex(), random.Random(7)
    costs = _even(draw)
    for nic in NICS[:4]:
        costs = _slow(costs, nic, 3.0, 3.0)
    assert _taught(ways).evaluate_uneven(_measured(ways, costs), 0.0, {}) == []
    assert (
        _taught(ways, spans=BASELINE_SETTLED_SPANS - 1).evaluate_uneven(
            _measured(ways, _slow(costs, "h7/0", 9, 9)), 0.0, {}
        )
        == []
    )


def test_a_ring_shows_no_nic():
    """A side that is one path cannot be told from that path."""
    ways = CellIndex()
    nics = NicUtilisation(ways)
    ring = dict.fromkeys(zip(NICS, NICS[1:] + NICS[:1], strict=True), 1.0)
    for _ in range(2 * BASELINE_SETTLED_SPANS):
        nics.learn(_measured(ways, ring))
    assert nics.evaluate_uneven(_measured(ways, _slow(ring, "h3/0", 5.0, 5.0)), 0.0, {}) == []
