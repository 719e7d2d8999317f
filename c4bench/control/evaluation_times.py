"""How long evaluations take, counted by duration: what a Prometheus histogram is made of."""

from bisect import bisect_left

import msgspec

# Upper bounds (s) of the durations that are counted together. Telemetry is evaluated ten times a second.
BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class EvaluationTimes(msgspec.Struct, frozen=True):
    """`counts` evaluations took as long as each of `BOUNDS_S` at most and longer than the one before.

    The last of them took longer than all bounds. `sum_s` is what all took together (s).
    """

    counts: tuple[int, ...] = (0,) * (len(BOUNDS_S) + 1)
    sum_s: float = 0.0

    def plus(self, took_s: float) -> "EvaluationTimes":
        """With one more evaluation, which took so long (s)."""
        place = bisect_left(BOUNDS_S, took_s)
        counts = (*self.counts[:place], self.counts[place] + 1, *self.counts[place + 1 :])
        return EvaluationTimes(counts, self.sum_s + took_s)
