"""Collections of garbage, which would otherwise come in the middle of a round of windows."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

# A window of eight ranks leaves about 50 new containers. With Python's 700 a collection would come with every 14th
# window, and every hundredth of these would visit all that the master holds; with 50,000 one comes with every 1,000th.
_THRESHOLDS = (50_000, 20, 100)


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
