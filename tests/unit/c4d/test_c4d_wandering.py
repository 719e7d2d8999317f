"""Who is late now and then is named once it is always the same one, and never when all take turns."""

import random

from c4bench.c4d.signs.stragglers import IntermittentStragglers

STALL_S = 1.0
PERIOD_S = 0.15


def judged(wandering, op, late, members, period_s=PERIOD_S):
    """What is found once `late` were so in the operation that all entered after so many periods."""
    since_s = op * period_s
    return wandering.evaluate(dict.fromkeys(late, (since_s, since_s + period_s)), members, STALL_S)


def test_the_same_rank_again_and_again_is_found_once():
    """Of eight members one is late every fourth operation: nine times are beyond chance, and it is said once."""
    wandering, found = IntermittentStragglers(), []
    for op in range(120):
        found += [(op, *item) for item in judged(wandering, op, [5] if op % 4 == 0 else [], range(8)).items()]
    assert found == [(32, 5, 9)]
    assert wandering.standing == {5}


def test_lateness_that_lasts_is_one_episode():
    """A single long delay is one event, however many operations it covers."""
    wandering = IntermittentStragglers()
    assert not any(judged(wandering, op, [3] if op % 40 < 6 else [], range(8)) for op in range(40 * 8))


def test_what_outlasts_any_benign_stall_is_another_episode():
    """Every third operation is in time; of two late ones in a row, each most of a stall long, both count."""
    wandering, found = IntermittentStragglers(), []
    for op in range(30):
        found += [(op, *item) for item in judged(wandering, op, [5] if op % 3 else [], range(8), 0.87).items()]
    assert found == [(13, 5, 9)]


def test_unevenness_that_hits_all_alike_is_chance():
    """Ten thousand uneven operations of members drawn at random name nobody."""
    draw, wandering = random.Random(1), IntermittentStragglers()
    assert not any(
        judged(wandering, op, [draw.randrange(8)] if draw.random() < 0.3 else [], range(8)) for op in range(10_000)
    )


def test_two_members_need_many_more_times():
    """With two members every second event hits the same one anyway, so nine times prove nothing."""
    wandering, found = IntermittentStragglers(), {}
    for op in range(18):
        found |= judged(wandering, op, [1] if op % 2 else [], range(2))
    assert found == {}


def test_groups_of_two_count_with_the_whole_job():
    """Eight pairs of ranks take turns; one rank is late every other time, which among sixteen is beyond chance."""
    wandering, found = IntermittentStragglers(), {}
    for step in range(24):
        for pair in range(8):
            late = [5] if pair == 2 and step % 2 else []
            found |= judged(wandering, step, late, [2 * pair, 2 * pair + 1])
    assert found.keys() == {5}


def test_one_delay_in_two_groups_is_one_episode():
    """A rank that is late in its tensor group and then in its data group was late once."""
    wandering = IntermittentStragglers()
    for step in range(40 * 8):
        for members in ([0, 1], [2, 3], [0, 2], [1, 3]):
            assert judged(wandering, step, [0] if step % 40 < 6 and 0 in members else [], members) == {}
