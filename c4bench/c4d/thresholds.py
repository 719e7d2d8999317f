"""When a departure is a fault: every bar follows from the job's own period, cadence and jitter.

The few numbers here are not tuned to a scenario. They are either stated promises (a hang is alarmed within a second or
three periods) or chances of error (one in 10^7 judgements) that any job shares.
"""

# The promise for hangs: max(one second, three periods) after the first operation it touches.
HANG_FLOOR_S = 1.0
HANG_PERIODS = 3.0
# A window tells of what was up to one cadence ago, may take half of one to come, and waits for the judgement for up to
# another.
OBSERVATION_LAG_CADENCES = 2.5
# A job that has not yet shown its period may be importing, compiling or loading: nobody knows how long it should take.
UNKNOWN_PERIOD_HANG_S = 30.0
MIN_PERIOD_SAMPLES = 3

# A span must hold a whole iteration, and several windows so that one odd window cannot decide.
SPAN_FLOOR_S = 0.2
WARM_UP_SPANS = 1
BASELINE_MIN_SPANS = 3
BASELINE_MAX_SPANS = 20
# From then on a span is learnt from only after so many later ones have shown that it opened no departure.
BASELINE_SETTLED_SPANS = 8
UNSURE_SPANS = 4
ALARM_SPANS = 2
NAME_SPANS = 3
# A single cell can be a chance meeting of two schedules; it must stay longer.
POINT_SPANS = 5

# A small departure is worth naming from 5 % on.
SLIGHT_RATIO = 1.05
# Without a history of its own a cell is held against its peers, whose paths may lawfully differ by as much.
PEER_RATIO = 3.0
# Beyond the largest departure seen in health the chance is taken to fall with this power: a heavy tail, to be safe.
TAIL_POWER = 4

# Lateness: shorter runs than this are chance, longer ones add nothing.
MIN_RUN_OPS = 3
# A collection of garbage takes an iteration or two, and is over.
MIN_RUN_PERIODS = 2.5
MAX_RUN_OPS = 32
SETTLE_OPS = 3
MIN_HISTORY_OPS = 8
FIRST_HISTORY_OPS = 16
# Over 2,000 iterations of 64 ranks 128,000 judgements are made.
CHANCE = 1e-7
SIGMAS = 6.0
# Less than this share of the compute time is not worth a restart.
MATERIAL_SHARE = 0.025
# A lasting skew below this share of the period is how the job is built (uneven shards), not a fault.
LAWFUL_SKEW_SHARE = 0.15


def benign_stall_s(period_s: float | None) -> float:
    """How long (s) an operation may stand still without being a finding: max(1 s, 3 periods)."""
    return UNKNOWN_PERIOD_HANG_S if period_s is None else max(HANG_FLOOR_S, HANG_PERIODS * period_s)


def hung_after_s(period_s: float | None, cadence_s: float) -> float:
    """How long (s) an operation must be seen to stand still before that is an alarm.

    The promise is an alarm *within* the longest benign stall, so the bar lies below that by as much as it may be seen
    too late (never below half of it). An alarm is no finding yet: what goes on in time was a stall.
    """
    longest_s = benign_stall_s(period_s)
    return max(longest_s / 2, longest_s - OBSERVATION_LAG_CADENCES * cadence_s)


def span_s(period_s: float | None) -> float:
    """Length (s) of one span of the delay matrix: a whole iteration, and no less than a few windows."""
    return max(SPAN_FLOOR_S, period_s or 0.0)
