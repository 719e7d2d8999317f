"""The programs a job may name."""

from collections.abc import Callable

from c4bench.workload import bandwidth, collectives, draws, link, perftest, recording, steady, training
from c4bench.workload.context import RankContext

PROGRAMS: dict[str, Callable[[RankContext], None]] = {
    "bandwidth": bandwidth.run,
    "collectives": collectives.run,
    "draws": draws.run,
    "link": link.run,
    "perftest": perftest.run,
    "recording": recording.run,
    "steady": steady.run,
    "training": training.run,
}
