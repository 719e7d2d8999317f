"""A checkpoint is valid only when it is complete and intact on disk."""

import json
import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from c4bench.errors import UnhealthyError
from c4bench.workload import perceptron
from c4bench.workload.checkpoint import Checkpoints

SIZE = 3
STEPS = (10, 20, 30)


def shard(step, rank):
    return f"{step} of {rank}".encode() * 50


def write(folder, step):
    kept = Checkpoints(folder)
    kept.complete(step, [kept.write(step, rank, SIZE, shard(step, rank)) for rank in range(SIZE)])


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Three complete checkpoints."""
    folder = tmp_path_factory.mktemp("checkpoints")
    for step in STEPS:
        write(folder, step)
    return folder


def test_the_newest_is_read_in_the_order_of_ranks(written):
    """All shards of the latest step, one after the other."""
    assert Checkpoints(written).newest() == 30
    assert Checkpoints(written).read(30) == b"".join(shard(30, rank) for rank in range(SIZE))


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_whatever_is_spoilt_of_a_checkpoint_the_one_before_is_taken(tmp_path_factory, written, data):
    """A truncated, changed, empty or missing shard or manifest makes the checkpoint invalid."""
    folder = tmp_path_factory.mktemp("spoilt") / "checkpoints"
    shutil.copytree(written, folder)
    victim = data.draw(st.sampled_from(sorted((folder / "0000000030").iterdir())))
    content = victim.read_bytes()
    how = data.draw(st.sampled_from(("cut", "flip", "empty", "gone")))
    if how == "gone":
        victim.unlink()
    elif how == "flip":
        at = data.draw(st.integers(0, len(content) - 1))
        victim.write_bytes(content[:at] + bytes([content[at] ^ 1 << data.draw(st.integers(0, 7))]) + content[at + 1 :])
    else:
        victim.write_bytes(content[: data.draw(st.integers(0, len(content) - 1)) if how == "cut" else 0])
    kept = Checkpoints(folder)
    # A flipped bit may leave a manifest that says the same, such as a digit's upper case; then nothing is lost.
    if kept.newest() == 30:
        assert victim.name == "manifest.json"
        assert kept.read(30) == Checkpoints(written).read(30)
    else:
        assert kept.newest() == 20
        with pytest.raises(UnhealthyError, match="not a complete checkpoint"):
            kept.read(30)


def test_a_checkpoint_without_its_manifest_is_none(tmp_path):
    """Shards of an incomplete step are ignored, and can be written again."""
    kept = Checkpoints(tmp_path)
    assert kept.newest() is None
    kept.write(10, 0, SIZE, b"of an attempt that died")
    kept.write(10, 2, SIZE, b"of an attempt that died")
    assert kept.newest() is None
    write(tmp_path, 10)
    assert kept.newest() == 10


def test_a_shard_of_another_attempt_is_noticed(tmp_path):
    """A shard overwritten after the manifest makes the checkpoint invalid."""
    write(tmp_path, 10)
    write(tmp_path, 20)
    Checkpoints(tmp_path).write(20, 1, SIZE, b"late")
    assert Checkpoints(tmp_path).newest() == 10


def test_old_checkpoints_are_deleted_but_not_the_last_ones(tmp_path):
    """Three are kept; nothing half written is left behind."""
    for step in range(10, 80, 10):
        write(tmp_path, step)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0000000050", "0000000060", "0000000070"]
    manifest = json.loads((tmp_path / "0000000070/manifest.json").read_text())
    assert (manifest["step"], len(manifest["digests"])) == (70, SIZE)


def train(state, first, last, ranks=4):
    """Losses of steps, with the gradients summed in the order of ranks."""
    losses = []
    for step in range(first, last):
        total = np.zeros(perceptron.PARAMETERS + 1, np.float32)
        for rank in range(ranks):
            own = np.zeros_like(total)
            perceptron.gradient(state, 7, step, rank, own)
            total += own
        total /= np.float32(ranks)
        perceptron.update(state, total[:-1])
        losses.append(float(total[-1]))
    return losses


def test_the_model_learns_and_goes_on_bit_for_bit():
    """The loss falls to less than half; from a copied state the same steps give the same bits, from another do not."""
    state = perceptron.initial(7)
    before = train(state, 0, 60)
    kept = np.frombuffer(state.tobytes(), np.float32).copy()
    after = train(state, 60, 120)
    assert train(kept, 60, 120) == after
    assert np.mean(after[-20:]) < np.mean(before[:20]) / 2
    other = perceptron.initial(7)
    train(other, 0, 59)
    assert train(other, 60, 120) != after


def test_the_gradient_is_the_slope_of_the_loss():
    """Each of a sample of parameters is nudged; the loss changes as the gradient says."""
    state = perceptron.initial(3)
    exact = np.zeros(perceptron.PARAMETERS + 1, np.float32)
    perceptron.gradient(state, 3, 0, 0, exact)
    scratch = np.zeros_like(exact)
    places = [0, 1000, 2047, 2048, 2100, 2112, 2170, perceptron.PARAMETERS - 1]
    for place in places:
        slopes = []
        for nudge in (np.float32(5e-2), np.float32(-5e-2)):
            moved = state.copy()
            moved[place] += nudge
            perceptron.gradient(moved, 3, 0, 0, scratch)
            slopes.append(float(scratch[-1]))
        assert (slopes[0] - slopes[1]) / 0.1 == pytest.approx(float(exact[place]), abs=2e-3)
