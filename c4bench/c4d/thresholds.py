"""Thresholds of all stages: chances of error, and how long a healthy job may stand still.

No number is tuned to a scenario. Each is a stated promise (a hang is alarmed within a second or three periods) or a
chance of error that any job shares.
"""

import math

# Beyond the largest departure seen in health the chance is taken to fall with this power: a heavy tail, to be safe.
TAIL_POWER = 4
# Transfers that share a link with others may be slower by this factor (log ratio).
BEYOND_SHARING = math.log(3.0)

# So many of the latest are kept of what only the recent past explains, such as a NIC's windows: some seconds.
KEPT = 64
# The present, in spans of the delay matrix: losses before it only show what is usual, and what carried nothing in it is
# new when it carries again.
RECENT_SPANS = 8
# What belongs together may be seen this many spans apart: connections move before their next operation, and what other
# jobs carry is known a little later.
APART_SPANS = 2
# Operations after which episodes and intervals say nothing about the present.
MEMORY_OPS = 512

# The promise for hangs: max(one second, three periods) after the first operation it touches.
HANG_FLOOR_S = 1.0
HANG_PERIODS = 3.0
# A window reports what was up to one cadence ago, may take half of one to arrive, and waits up to another for the
# evaluation.
OBSERVATION_LAG_CADENCES = 2.5
# A job that has not yet shown its period may be importing, compiling or loading: nobody knows how long it should take.
UNKNOWN_PERIOD_HANG_S = 30.0


def benign_stall_s(period_s: float | None) -> float:
    """How long (s) an operation may stand still without being a finding: max(1 s, 3 periods)."""
    return UNKNOWN_PERIOD_HANG_S if period_s is None else max(HANG_FLOOR_S, HANG_PERIODS * period_s)


def hung_after_s(period_s: float | None, cadence_s: float) -> float:
    """How long (s) an operation must be seen to stand still before that is an alarm.

    The promise is an alarm *within* the longest benign stall, so the threshold is lower by the longest observation lag
    (never below half of it). An alarm is not yet a finding: an operation that goes on in time was a stall.
    """
    longest_s = benign_stall_s(period_s)
    return max(longest_s / 2, longest_s - OBSERVATION_LAG_CADENCES * cadence_s)


# Hangs, in cadences: the time between two windows of a host.

# A window reports what happened up to one cadence before, and another may pass until the next one. Less than two may
# also be an offset between two hosts' windows.
REPORTED_CADENCES = 2.0
# Windows are whole cadences apart, except for clock offsets: thresholds lie halfway between two windows.
BETWEEN_CADENCES = 0.5

# Stragglers. Shares are of the median compute time before an operation.

# A share below this is not worth a restart.
MATERIAL_SHARE = 0.025
# A lasting skew below this share of the period is how the job is built (uneven shards), not a fault.
LAWFUL_SKEW_SHARE = 0.15
# Standard deviations of healthy lateness that a run's mean must exceed.
SIGMAS = 6.0

# Operations in a run of lateness: shorter runs are chance, longer ones add nothing.
MIN_RUN_OPS = 3
MAX_RUN_OPS = 32
# A garbage collection takes an iteration or two; a run must last longer (periods).
MIN_RUN_PERIODS = 2.5

# A communicator's first operations, which set it up, are not evaluated.
SETTLE_OPS = 3
# Operations that must be known before any is evaluated, and up to which each is learnt at once.
MIN_HISTORY_OPS = 8
FIRST_HISTORY_OPS = 16

# A compute interval holds at least this share of a period: an iteration has few of them, so that a run is of a few.
INTERVAL_SHARE = 1 / 8
# An operation after less computing than this share of the usual long gap says nothing about computing: such as a
# collective called right behind another.
BEARING_SHARE = 0.2
# Operations closer together than this share of a period belong to one iteration.
ITERATION_SHARE = 0.9

# Network slowness. A span is one interval of the delay matrix; departures are log ratios to a floor.

# A span must hold a whole iteration, and several windows so that one odd window cannot decide (s).
SPAN_FLOOR_S = 0.2
# Evaluations are a tenth of a second apart, give or take this (s): a span does not wait for one more because of it.
EARLY_S = 0.005
# The first span holds the job's start.
WARM_UP_SPANS = 1

# A floor learns from no more healthy spans of a cell. As many are weighed of a run: longer ones add nothing.
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
# From this much evidence on a cell leans towards slow, and is weighed.
LEANING = 0.15
# From this much on a cell is not learnt from.
CLEAN = 0.5


def span_s(period_s: float | None) -> float:
    """Length (s) of one span of the delay matrix: a whole iteration, and no less than a few windows."""
    return max(SPAN_FLOOR_S, period_s or 0.0)
