"""Thresholds that several stages share: chances of error, and how long a healthy job may stand still.

No number is tuned to a scenario. Each is a stated promise (a hang is alarmed within a second or three periods) or a
chance of error that any job shares. Thresholds of one stage are in that stage's package.
"""

import math

# The chance of an error in one evaluation: 2,000 iterations of 64 ranks make 128,000 evaluations.
CHANCE = 1e-7
# Beyond the largest departure seen in health the chance is taken to fall with this power: a heavy tail, to be safe.
TAIL_POWER = 4
# Paths of healthy peers may differ by this factor, and so may transfers that share a link with others.
PEER_RATIO = 3.0
# The same as a log ratio.
BEYOND_SHARING = math.log(PEER_RATIO)

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
