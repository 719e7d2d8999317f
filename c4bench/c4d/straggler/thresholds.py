"""Thresholds of the straggler stage. Shares are of the median compute time before an operation."""

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
