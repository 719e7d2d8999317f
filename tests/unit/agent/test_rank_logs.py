"""What ranks print for a week fills no disk."""

import asyncio
import os

from c4bench.agent import ranks

LARGEST = 1000


def test_a_log_that_has_grown_is_moved_and_its_rank_prints_on(tmp_path, monkeypatch):
    """Two files of the largest size at most; the newest lines are in the file that the rank still has open."""
    monkeypatch.setattr(ranks, "_EVERY_S", 0.001)
    path = ranks.log_of(str(tmp_path), "job", 3)

    async def work():
        rotating = asyncio.create_task(ranks.rotate(lambda: [path, tmp_path / "not there"], LARGEST))
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        for number in range(50):
            os.write(descriptor, b"%099d\n" % number)
            # What is printed between the copy and the cut of a file that is being moved is lost.
            while path.stat().st_size > LARGEST:
                await asyncio.sleep(0.001)
        os.write(descriptor, b"last\n")
        os.close(descriptor)
        rotating.cancel()

    asyncio.run(work())
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == ["job-3.log", "job-3.log.1"]
    assert all(0 < file.stat().st_size < 2 * LARGEST for file in files)
    assert path.read_bytes().endswith(b"last\n")
