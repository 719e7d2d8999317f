"""The programs a job may name."""

from collections.abc import Callable

from c4bench.workload import (
    bandwidth,
    collectives,
    draws,
    groups,
    learning,
    link,
    pairs,
    perftest,
    pulse,
    recording,
    recovery,
    steady,
    steps,
    training,
    trials,
)
from c4bench.workload.context import RankContext

PROGRAMS: dict[str, Callable[[RankContext], None]] = {
    "bandwidth": bandwidth.run,
    "collectives": collectives.run,
    "draws": draws.run,
    "groups": groups.run,
    "learning": learning.run,
    "link": link.run,
    "pairs": pairs.run,
    "perftest": perftest.run,
    "pulse": pulse.run,
    "recording": recording.run,
    "recovery": recovery.run,
    "steady": steady.run,
    "steps": steps.run,
    "training": training.run,
    "trials": trials.run,
}
