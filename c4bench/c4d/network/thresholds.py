"""Thresholds of the network stage. A span is one interval of the delay matrix; departures are log ratios to a floor."""

import math

# A span must hold a whole iteration, and several windows so that one odd window cannot decide (s).
SPAN_FLOOR_S = 0.2
# Evaluations are a tenth of a second apart, give or take this (s): a span does not wait for one more because of it.
EARLY_S = 0.005
# The first span holds the job's start.
WARM_UP_SPANS = 1

# A floor needs this many healthy spans of a cell, and learns from no more than that many.
BASELINE_MIN_SPANS = 3
BASELINE_MAX_SPANS = 20
# From this many on, a span is learnt only after `UNSURE_SPANS` later ones have shown that it opened no departure.
BASELINE_SETTLED_SPANS = 8
UNSURE_SPANS = 4
# The floor is undercut by one span in this many: of all that are kept of a cell, one of the least.
SPANS_PER_FLOOR = 10
# The cells of this many NICs show how all behave.
SAMPLED_NICS = 128

# Spans in a row that raise an alarm, and that name a component.
ALARM_SPANS = 2
NAME_SPANS = 3
# A single cell can be a chance meeting of two schedules; it must stay longer.
POINT_SPANS = 5

# A departure is worth naming from 5 % on.
SLIGHT_RATIO = 1.05
SLIGHT = math.log(SLIGHT_RATIO)

# Evidence is measured as a share of what is enough to blame a component (`Weight.of_enough`).
ENOUGH = 1.0
# From this much evidence on a cell leans towards slow, and is localised.
LEANING = 0.15
# From this much on a cell is not learnt from.
CLEAN = 0.5


def span_s(period_s: float | None) -> float:
    """Length (s) of one span of the delay matrix: a whole iteration, and no less than a few windows."""
    return max(SPAN_FLOOR_S, period_s or 0.0)
