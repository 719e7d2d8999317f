"""The programs a job may name."""

from collections.abc import Callable

from c4bench.workload import bandwidth, collectives, draws, link, perftest, recording, steps, training, trials
from c4bench.workload.context import RankContext

PROGRAMS: dict[str, Callable[[RankContext], None]] = {
    "bandwidth": bandwidth.run,
    "collectives": collectives.run,
    "draws": draws.run,
    "link": link.run,
    "perftest": perftest.run,
    "recording": recording.run,
    "steps": steps.run,
    "training": training.run,
    "trials": trials.run,
}
