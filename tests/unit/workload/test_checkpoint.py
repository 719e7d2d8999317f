"""A checkpoint is valid only when it is complete and intact on disk."""

import json
import shutil
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from c4bench.errors import UnhealthyError, UsageError
from c4bench.model.telemetry import Member
from c4bench.wire.messages import JobSpec
from c4bench.workload import programs
from c4bench.workload.checkpoint import Checkpoints
from c4bench.workload.learning import Learner, Learning

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


class Alone:
    """What a job's only rank has of its communicator: what it sums and gathers is its own."""

    rank, size = 0, 1

    def all_reduce(self, array):
        pass

    def all_gather(self, into, own):
        into.reshape(own.shape)[:] = own


class Unhindered:
    """Controls without a fault, for which computing takes no time."""

    def compute(self, duration_s):
        pass


def learner(folder):
    """The only rank of a job that learns."""
    parameters = Learning(str(folder), token_bytes=0, gradient_bytes=0, state_bytes=0)
    job = JobSpec("job", "learning", (Member(0, "h0", ()),), (), seed=7)
    context = SimpleNamespace(job=job, rank=0, controls=Unhindered())
    return Learner(Alone(), parameters, context)


def test_a_job_learns_and_goes_on_from_a_checkpoint_bit_for_bit(tmp_path):
    """The loss falls by a third; after a restart the losses are the same bits, and without the optimiser's are not."""
    whole = learner(tmp_path)
    assert whole.load() == 0
    before = [whole.step(step) for step in range(60)]
    whole.save(60)
    after = [whole.step(step) for step in range(60, 120)]
    assert np.mean(after[-20:]) < np.mean(before[:5]) * 2 / 3
    restarted = learner(tmp_path)
    assert restarted.load() == 60
    assert [restarted.step(step) for step in range(60, 120)] == after
    forgetful = learner(tmp_path)
    forgetful.load()
    forgetful._optimiser.state[:] = 0
    assert [forgetful.step(step) for step in range(60, 120)] != after


def test_a_learning_job_is_checked_before_it_starts(monkeypatch):
    """Wrong parameters, and a package that is not installed, are named where a job is requested."""
    programs.check("learning", {"checkpoints": "/tmp"})
    programs.check("training", {})
    with pytest.raises(UsageError, match=r"program 'learning': .*heads 3.* `\$\.model`"):
        programs.check("learning", {"checkpoints": "/tmp", "model": {"width": 16, "heads": 3}})
    with pytest.raises(UsageError, match="no program 'dreaming': one of bandwidth, "):
        programs.check("dreaming", {})
    monkeypatch.setitem(sys.modules, "autograd", None)
    with pytest.raises(UsageError, match=r"need autograd; run: pip install autograd threadpoolctl"):
        programs.check("learning", {"checkpoints": "/tmp"})
