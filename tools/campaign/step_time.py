"""What a fault cost a job: the growth of its step time, from the operations that its ranks recorded."""

from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

from c4bench.model.window import Window

# A fault matters to a job if it costs more than this share of its step time.
STEP_LOSS_LIMIT = 0.02
# A job that calls nothing for longer than this (s), and than this many of its longest healthy intervals, has stopped.
_STOPPED_S = 0.8
_STOPPED_INTERVALS = 3.0
# Fewer intervals give no mean.
_LEAST_INTERVALS = 3


class _Call(NamedTuple):
    """One rank's call of a communicator; `seq` counts them. On the clock of the rank's host (s)."""

    seq: int
    entered_s: float


class StepLoss(NamedTuple):
    """The growth of the mean step time since the onset, as a share of that before, and whether the job stopped."""

    share: float
    stopped: bool

    @property
    def matters(self) -> bool:
        """Whether this is more than a healthy job loses."""
        return self.stopped or self.share > STEP_LOSS_LIMIT


def step_loss(windows: Iterable[Window], onset_s: float, until_s: float) -> StepLoss:
    """The job's loss from `onset_s` to `until_s` (s), by its communicator that lost the most.

    It has stopped as well if the process of a rank is not running any more. A step shows in a communicator as the
    interval between two calls of it by one rank: each step makes the same number of calls. The interval that contains
    the onset counts as one after it.
    """
    heard = [window for window in windows if window.end_s <= until_s]
    losses = [loss for calls in _calls(heard, until_s) if (loss := _loss(calls, onset_s, until_s)) is not None]
    ended = any(rank.state != "running" for window in heard for rank in window.ranks)
    return StepLoss(max((loss.share for loss in losses), default=0.0), ended or any(loss.stopped for loss in losses))


def _calls(windows: Iterable[Window], until_s: float) -> list[list[_Call]]:
    """Of each communicator what its lowest rank called until then, without the first, in order."""
    ops = {(op.comm, op.rank, op.seq): op.entered_s for window in windows for op in window.ops}
    ranks: dict[str, int] = {}
    for comm, rank, _ in ops:
        ranks[comm] = min(rank, ranks.get(comm, rank))
    calls: dict[str, list[_Call]] = defaultdict(list)
    for (comm, rank, seq), entered_s in sorted(ops.items()):
        if rank == ranks[comm] and seq and entered_s <= until_s:
            calls[comm].append(_Call(seq, entered_s))
    return list(calls.values())


def _loss(calls: list[_Call], onset_s: float, until_s: float) -> StepLoss | None:
    """The loss of one communicator; None where it was hardly used before the onset."""
    before = [call for call in calls if call.entered_s <= onset_s]
    if len(before) <= _LEAST_INTERVALS:
        return None
    after = [before[-1], *calls[len(before) :]]
    longest_s = max(later.entered_s - earlier.entered_s for earlier, later in pairwise(before))
    stopped = until_s - calls[-1].entered_s > max(_STOPPED_S, _STOPPED_INTERVALS * longest_s)
    share = _interval_s(after) / _interval_s(before) - 1 if len(after) > _LEAST_INTERVALS else 0.0
    return StepLoss(share, stopped)


def _interval_s(calls: list[_Call]) -> float:
    return (calls[-1].entered_s - calls[0].entered_s) / (calls[-1].seq - calls[0].seq)
