"""Fragments of a model, and when they are sent and received."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from c4bench.errors import UsageError
from c4bench.workload.diloco.plan import cut, schedule
from c4bench.workload.models.protocol import Layer


def layers(blocks, width=4):
    """An embedding of 10 parameters, and blocks of `width`."""
    edges = [0, *(10 + width * number for number in range(blocks + 1))]
    names = ["embedding", *(f"block{number}" for number in range(blocks))]
    return [Layer(name, *span) for name, span in zip(names, pairwise(edges), strict=True)]


@given(blocks=st.integers(2, 30), count=st.integers(2, 30), pattern=st.sampled_from(["strided", "sequential"]))
def test_every_parameter_is_in_one_fragment(blocks, count, pattern):
    """Fragments are whole layers, cover the vector once, and the embedding is one of its own."""
    assume(count <= blocks)
    model = layers(blocks)
    found = cut(model, count, pattern)
    assert len(found) == count + 1
    assert found[-1].layers == ("embedding",)
    assert sorted(name for part in found for name in part.layers) == sorted(layer.name for layer in model)
    vector = np.arange(model[-1].end, dtype=np.float32)
    assert sorted(np.concatenate([part.gather(vector) for part in found])) == list(vector)
    copy = np.zeros_like(vector)
    for part in found:
        part.scatter(part.gather(vector), copy)
    assert (copy == vector).all()


def test_strides_and_sequences():
    """Of six blocks in three fragments, strided ones are two apart, sequential ones are neighbours in one span."""
    strided, sequential = (cut(layers(6), 3, pattern) for pattern in ("strided", "sequential"))
    assert [part.layers for part in strided[:3]] == [("block0", "block3"), ("block1", "block4"), ("block2", "block5")]
    assert [part.layers for part in sequential[:3]] == [
        ("block0", "block1"),
        ("block2", "block3"),
        ("block4", "block5"),
    ]
    assert strided[0].spans == ((10, 14), (22, 26))
    assert sequential[0].spans == ((10, 18),)


def test_one_fragment_is_the_whole_model():
    """Plain DiLoCo synchronises the embedding with the blocks."""
    (whole,) = cut(layers(3), 1, "strided")
    assert whole.spans == ((0, 22),)


def test_more_fragments_than_blocks_are_refused():
    """Fragments are of whole blocks."""
    with pytest.raises(UsageError, match="fragments: 5 must be from 1 to 4, the number of the model's blocks"):
        cut(layers(4), 5, "strided")


@given(data=st.data(), fragments=st.integers(1, 40), periods=st.integers(1, 4))
def test_each_fragment_is_sent_once_in_a_period(data, fragments, periods):
    """Sent every H steps, received tau later, never two under way, and none at a multiple of H."""
    period = data.draw(st.integers(fragments, 200))
    overlap = data.draw(st.integers(0, period // fragments - 1))
    plan = schedule(period, fragments, overlap)
    turns = [plan.turn(number) for number in range(periods * fragments)]
    for turn in turns:
        assert turn.received - turn.sent == overlap
        assert turn.sent >= 1
        assert (
            turn.sent - turn.fragment * (period // fragments) - turn.number // fragments * period == plan.turn(0).sent
        )
        assert turn.sent // period == (turn.received - 1) // period or overlap == 0
    for before, after in pairwise(turns):
        assert before.received < after.sent or (overlap == 0 and before.received < after.sent + 1)
        assert plan.first_after(before.sent) == after.number
        assert plan.first_after(before.sent - 1) == before.number
    for fragment in range(fragments):
        sent = [turn.sent for turn in turns if turn.fragment == fragment]
        assert {after - before for before, after in pairwise(sent)} <= {period}


def test_the_papers_own_schedule():
    """Eight fragments of blocks and the embedding's are synchronised every 11 steps when H is 100 (section 3.1)."""
    plan = schedule(100, 9, 1)
    assert [plan.turn(number).sent for number in (0, 1, 8, 9, 10)] == [10, 21, 98, 110, 121]


@pytest.mark.parametrize(
    ("period", "fragments", "overlap", "spacing", "word"),
    [
        (8, 9, 0, 0, "inner_steps: 8 is less than the 9 fragments"),
        (100, 9, 11, 0, "overlap: 11 inner steps must be from 0 to 10"),
        (100, 9, -1, 0, "overlap: -1 inner steps must be from 0 to 10"),
        (100, 9, 1, 11, "inner_steps: 100 is not a multiple of spacing 11"),
        (100, 9, 1, 20, "inner_steps: 100 is not a multiple of spacing 20 that has room for 9"),
        (100, 5, 20, 20, "overlap: 20 inner steps must be from 0 to 19"),
    ],
)
def test_steps_that_do_not_fit_are_refused(period, fragments, overlap, spacing, word):
    """One line names the parameter and the reason."""
    with pytest.raises(UsageError) as raised:
        schedule(period, fragments, overlap, spacing)
    assert str(raised.value).startswith(word)
