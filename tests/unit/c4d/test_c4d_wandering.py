"""Who is late now and then is named once it is always the same one, and never when all take turns."""

import random

from c4bench.c4d.wandering import Wandering


def test_the_same_rank_again_and_again_is_found_once():
    """Of eight members one is late every fourth operation: nine times are beyond chance, and it is said once."""
    wandering, found = Wandering(8), []
    for op in range(120):
        found += [(op, *item) for item in wandering.judge([5] if op % 4 == 0 else []).items()]
    assert found == [(32, 5, 9)]
    assert wandering.standing == {5}


def test_lateness_that_lasts_is_one_episode():
    """A single long delay is one event, however many operations it covers."""
    wandering = Wandering(8)
    assert [wandering.judge([3]) for _ in range(50)] == [{}] * 50


def test_unevenness_that_befalls_all_alike_is_chance():
    """Ten thousand uneven operations of members drawn at random name nobody."""
    draw, wandering = random.Random(1), Wandering(8)
    assert not any(wandering.judge([draw.randrange(8)] if draw.random() < 0.3 else []) for _ in range(10_000))


def test_two_members_need_many_more_times():
    """Where every second event befalls the same one anyway, nine times prove nothing."""
    wandering, found = Wandering(2), {}
    for op in range(18):
        found |= wandering.judge([1] if op % 2 else [])
    assert found == {}
