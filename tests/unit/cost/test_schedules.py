"""When layers are exchanged: offsets, fragments and what is refused."""

import re

import pytest

from c4bench.cost.utilisation import Pattern, Schedule, diloco, streaming


def test_the_papers_example_of_two_fragments():
    """With H = 100 and two fragments one is exchanged after step 0 and one after step 50 (the paper's section 2.2)."""
    assert streaming(6, 2, 100).offsets == (0, 50, 0, 50, 0, 50)
    assert streaming(6, 2, 100, pattern=Pattern.SEQUENTIAL).offsets == (0, 0, 0, 50, 50, 50)


def test_fragments_that_do_not_divide_the_layers():
    """Every fragment has layers, at most one more than another; offsets are whole steps, as even as possible."""
    for pattern in Pattern:
        offsets = streaming(10, 4, 10, pattern=pattern).offsets
        counts = {offset: offsets.count(offset) for offset in offsets}
        assert sorted(counts) == [0, 2, 5, 8]
        assert sorted(counts.values()) == [2, 2, 3, 3]


def test_one_fragment_is_diloco():
    """Streaming a single fragment without overlap is plain DiLoCo."""
    assert streaming(5, 1, 7) == diloco(5, 7)


def test_more_fragments_than_steps():
    """With more fragments than steps several are exchanged after one step, and none beyond the period."""
    assert streaming(9, 9, 4).offsets == (0, 0, 1, 1, 2, 2, 3, 3, 0)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Schedule(3, (0, 3)), "offsets (0, 3) are not from 0 to below the period of 3"),
        (lambda: Schedule(3, ()), "offsets () are not"),
        (lambda: Schedule(3, (0,), overlap=3), "an overlap of 3 steps is not from 0 to below the period of 3"),
        (lambda: Schedule(3, (0,), overlap=-1), "an overlap of -1 steps"),
        (lambda: streaming(4, 5, 10), "4 layers cannot be 5 fragments"),
        (lambda: streaming(4, 0, 10), "4 layers cannot be 0 fragments"),
    ],
)
def test_impossible_schedules_are_refused(make, words):
    """A layer that is never sent, or sent again before it was needed, is an error, as are fragments without layers."""
    with pytest.raises(ValueError, match=re.escape(words)):
        make()
