"""What ranks print goes to files that they append to, for as long as they run; each is kept below a size."""

import asyncio
import logging
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

_logger = logging.getLogger(__name__)

AT_MOST_BYTES = 64 << 20
_EVERY_S = 60.0


async def rotate(logs: Callable[[], Iterable[Path]], at_most_bytes: int = AT_MOST_BYTES) -> None:
    """Every minute, keep the `logs` that ranks write now below `at_most_bytes`, until cancelled."""
    while True:
        await asyncio.sleep(_EVERY_S)
        for path in logs():
            if _size(path) > at_most_bytes:
                await asyncio.to_thread(_rotate, path)


def log_of(state: str, job: str, rank: int) -> Path:
    """The file that a rank prints to, in the agent's `state` folder."""
    return Path(state) / f"{job}-{rank}.log"


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _rotate(path: Path) -> None:
    """Move what is in a file to `NAME.1`, which is replaced; whoever appends to the file goes on at its beginning."""
    older = path.with_name(f"{path.name}.1")
    try:
        shutil.copyfile(path, older)
        with path.open("rb+") as file:
            file.truncate()
    except OSError as error:
        _logger.warning("%s is not rotated: %s; free space on its disk", path, error.strerror)
