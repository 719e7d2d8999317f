"""Small departures become evidence by staying, and one good span refutes them."""

import math

import pytest

from c4bench.attribution.weigh import CHANCE
from c4bench.c4d.signs.delays import Evidence

CELL = ("a", "b")


def test_spans_in_a_row_multiply():
    """What happens by chance once in ten spans is enough after seven of them, and not after six."""
    evidence = Evidence(lambda *seen: 0.1 ** seen[-1])
    for span in range(7):
        evidence.add({CELL: 1.0}, float(span))
        weight = evidence.weights()[CELL].of_enough
        assert weight == pytest.approx((span + 1) * math.log(10) / -math.log(CHANCE))
    assert weight == pytest.approx(1.0)
    assert evidence.weights()[CELL].onset_s == 0.0


def test_one_span_near_the_floor_clears():
    """A component that was as fast as ever, once, is not what is slow."""
    evidence = Evidence(lambda *seen: 0.01 ** seen[-1])
    evidence.add({CELL: 1.0}, 0.0)
    evidence.add({CELL: 0.0}, 1.0)
    assert evidence.weights() == {}


def test_onset_is_where_the_departure_began_and_not_a_chance_before_it():
    """A slight departure before a large one, which is what speaks, does not move the onset."""
    evidence = Evidence(lambda _, departure, spans: (0.5 if departure < 0.5 else 1e-4) ** spans)
    for span, departure in enumerate((0.1, 0.1, 2.0, 2.0)):
        evidence.add({CELL: departure}, float(span))
    assert evidence.weights()[CELL].onset_s == 2.0
