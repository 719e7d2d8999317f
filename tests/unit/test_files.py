"""Files that are replaced as a whole, and files of others that are read within bounds."""

import os
from pathlib import Path

import pytest

from c4bench import files
from c4bench.budget import Budget
from c4bench.errors import UsageError
from c4bench.files import read_bounded


def test_a_file_is_replaced_by_all_parts(tmp_path):
    """The content is that of all parts, and nothing else is in the folder afterwards."""
    path = tmp_path / "state.json"
    path.write_bytes(b"a longer old content")
    files.replace(path, (part for part in (b"new ", b"content")), durable=True)
    assert path.read_bytes() == b"new content"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failure_leaves_the_old_file(tmp_path):
    """An error while writing changes nothing, and leaves no part of the new file."""
    path = tmp_path / "state.json"
    path.write_bytes(b"old")

    def parts():
        yield b"half"
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        files.replace(path, parts())
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_secret_is_never_readable_by_others(tmp_path):
    """The permissions are there before the content is."""
    seen = []

    def parts():
        seen.extend(path.stat().st_mode & 0o777 for path in tmp_path.iterdir())
        yield b"secret"

    files.replace(tmp_path / "token", parts(), mode=0o600)
    assert seen == [0o600]
    assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600


def test_a_durable_file_is_on_disk_before_it_has_its_name(tmp_path, monkeypatch):
    """The content is synchronised first, then renamed, then the folder is synchronised; otherwise nothing is."""
    path, synced, sync = tmp_path / "state.json", [], os.fsync

    def record(descriptor):
        synced.append((Path(f"/proc/self/fd/{descriptor}").readlink(), path.exists()))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    files.replace(path, [b"new"], durable=True)
    assert [exists for _, exists in synced] == [False, True]
    assert synced[1][0] == tmp_path
    synced.clear()
    files.replace(path, [b"newer"])
    assert synced == []


def test_a_file_of_others_is_read_within_its_budget(tmp_path):
    """A file within the bytes is read whole; one that is larger, or takes too long, and what is no file are refused."""
    path = tmp_path / "file"
    path.write_bytes(b"x" * 100)
    budget = Budget(bytes=100, records=1, names=1, seconds=10.0)
    assert read_bounded(path, budget) == b"x" * 100
    slow = Budget(bytes=100, records=1, names=1, seconds=-1.0)
    small = Budget(bytes=99, records=1, names=1, seconds=10.0)
    os.mkfifo(tmp_path / "pipe")
    for place, bounds, words in (
        (path, small, "more than 99 bytes"),
        (path, slow, "seconds"),
        (tmp_path / "pipe", budget, "no regular file"),
        (tmp_path, budget, "no regular file"),
        (tmp_path / "none", budget, "No such file"),
    ):
        with pytest.raises(UsageError, match=words):
            read_bounded(place, bounds)
