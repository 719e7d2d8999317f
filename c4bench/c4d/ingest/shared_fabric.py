"""What the detectors of all jobs on a fabric share: where paths lead, what is missing, and who else is there."""

from collections.abc import Collection

from c4bench.c4d.ingest.known_paths import KnownPaths, PathLinks
from c4bench.c4d.ingest.traffic_arrivals import TrafficArrivals
from c4bench.model.fabric import MissingLink
from c4bench.model.recording import LinksMissing, PathsLearnt, TrafficArrival


class SharedFabric:
    """As far as C4P has learnt it by now; without C4P nothing is known of paths, and nothing is missing."""

    def __init__(self, paths: PathLinks | None = None, arrivals: TrafficArrivals | None = None) -> None:
        self.paths = KnownPaths(paths)
        self.missing: tuple[MissingLink, ...] = ()
        self.arrivals = arrivals or TrafficArrivals()

    def ingest(self, record: PathsLearnt | LinksMissing | TrafficArrival) -> None:
        """C4P has learnt something, or another job has come."""
        match record:
            case PathsLearnt():
                self.paths.learn(record.ways)
            case LinksMissing():
                self.missing = record.links
            case TrafficArrival():
                self.arrivals.ingest(record)

    def snapshot(self, now_s: float, nics: Collection[str]) -> tuple[PathsLearnt, LinksMissing]:
        """All that somebody who begins now has to hear, if these NICs are all that matter."""
        ways = tuple((*way, hops) for way, hops in sorted(self.paths.items()) if way[1] in nics)
        return PathsLearnt(now_s, ways), LinksMissing(now_s, self.missing)
