"""Collections of garbage, which would otherwise come in the middle of a round of windows."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

# A window that is kept has a few new containers. With Python's 700 a collection would come with every few hundred of
# them, and every hundredth of these would visit all that the master holds.
_THRESHOLDS = (50_000, 20, 100)
# From so many new containers on there is a collection in a pause, long before one comes by itself.
_DUE = _THRESHOLDS[0] // 2


def collect_in_pause() -> None:
    """Collect what is due, where nothing waits for the master; the older generations as rarely as by themselves."""
    new, middle, old = gc.get_count()
    if new > _DUE:
        gc.collect(2 if old > _THRESHOLDS[2] else 1 if middle > _THRESHOLDS[1] else 0)


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Leave what exists now out of all collections, and have few of them, until the end."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
