"""The text that models train on, and its batches."""

import numpy as np
import pytest

from c4bench.errors import UsageError
from c4bench.workload.models import corpus


@pytest.fixture(scope="module")
def text():
    """The text that is part of the package."""
    return corpus.load()


def test_the_parts_are_the_whole_text(text):
    """The first nine tenths are for training, the rest for validation; the poem begins and ends as it does."""
    whole = text.training.tobytes() + text.validation.tobytes()
    assert whole == corpus.TEXT.read_bytes()
    assert len(text.training) == 9 * len(whole) // 10
    assert b"Of Man's first disobedience, and the fruit\n" in whole[:200]
    assert whole.endswith(b"Through Eden took their solitary way.\n")


def test_a_batch_depends_on_seed_step_and_rank(text):
    """The same three give the same tokens; another of either gives others; all are stretches of the training part."""
    batch = text.batch(7, 3, 2, 5, 16)
    assert (batch.shape, batch.dtype) == ((5, 17), np.uint8)
    assert batch.tobytes() == text.batch(7, 3, 2, 5, 16).tobytes()
    others = [text.batch(*named, 5, 16).tobytes() for named in ((8, 3, 2), (7, 4, 2), (7, 3, 1))]
    assert len({batch.tobytes(), *others}) == 4
    assert all(sequence.tobytes() in text.training.tobytes() for sequence in batch)


def test_validation_is_apart_and_always_the_same(text):
    """Stretches for validation are spread over their part, which no batch of training reaches."""
    held_out = text.held_out(8, 64)
    assert held_out.shape == (8, 65)
    assert held_out.tobytes() == text.held_out(8, 64).tobytes()
    assert len({sequence.tobytes() for sequence in held_out}) == 8
    assert all(sequence.tobytes() in text.validation.tobytes() for sequence in held_out)
    assert not any(sequence.tobytes() in text.training.tobytes() for sequence in held_out)


def test_every_place_of_the_training_part_can_be_drawn():
    """The first and the last token of a small text are both drawn, and nothing outside it."""
    small = corpus.Corpus(np.arange(10, dtype=np.uint8), np.empty(0, np.uint8))
    drawn = np.concatenate([small.batch(1, step, 0, 4, 3).ravel() for step in range(100)])
    assert set(drawn.tolist()) == set(range(10))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda _path: None, "cannot be read: No such file or directory; install c4bench again"),
        (lambda path: path.write_bytes(corpus.TEXT.read_bytes()[:1000]), r"cut or changed \(1000 bytes"),
        (lambda path: path.write_bytes(corpus.TEXT.read_bytes().replace(b"Eden", b"eden", 1)), "cut or changed"),
    ],
    ids=["missing", "cut", "changed"],
)
def test_a_text_that_is_not_the_known_one_is_refused(tmp_path, spoil, message):
    """A text that is missing, cut or changed by a letter is named in one line."""
    path = tmp_path / "text.txt"
    spoil(path)
    with pytest.raises(UsageError, match=message) as raised:
        corpus.load(path)
    assert str(raised.value).startswith(f"{path}: ")
    assert "\n" not in str(raised.value)
