"""State that the detectors of all jobs on a fabric share: paths, rates, missing links, the jobs' traffic."""

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from c4bench.attribution.weigh import Cell, Links
from c4bench.c4d.thresholds import KEPT
from c4bench.model.fabric import MissingLink
from c4bench.model.recording import (
    FabricRecord,
    LearntPath,
    LinkRates,
    LinksMissing,
    PathsLearnt,
    PlannerRecord,
    TrafficArrival,
    TrafficCarried,
    TrafficRecord,
)

# The far addresses of a path's links, by its source, destination and source port.
PathLinks = Mapping[tuple[str, str, int], tuple[str, ...]]


class KnownPaths(dict[tuple[str, str, int], tuple[str, ...]]):
    """The links by path; `learnt` changes whenever something has been learnt."""

    def __init__(self, paths: PathLinks | None = None) -> None:
        super().__init__(paths or {})
        self.learnt = 0

    def learn(self, paths: Iterable[LearntPath]) -> None:
        """Add the links of these paths."""
        self.update((path[:3], path[3]) for path in paths)
        self.learnt += 1


class Switch(NamedTuple):
    """The addresses that a switch answers by, and what is cabled to it."""

    addresses: frozenset[str]
    cabled: frozenset[str]


def switches(before: Mapping[str, Collection[str]]) -> list[Switch]:
    """The switches that ends of cables lead from, by the addresses that answered last `before` each: all of one."""
    known: list[Switch] = []
    for end, addresses in sorted(before.items()):
        joined = [switch for switch in known if not switch.addresses.isdisjoint(addresses)]
        merged = Switch(
            frozenset(addresses).union(*(switch.addresses for switch in joined)),
            frozenset({end}).union(*(switch.cabled for switch in joined)),
        )
        known = [*(switch for switch in known if switch not in joined), merged]
    return known


# Spans that are kept, of all jobs together: the latest, in which a slowdown may be explained.
_SPANS_KEPT = 256


class CarriedTraffic:
    """What jobs have carried in their latest spans."""

    def __init__(self) -> None:
        self._spans: deque[TrafficCarried] = deque(maxlen=_SPANS_KEPT)

    def ingest(self, span: TrafficCarried) -> None:
        """Note a span of a job."""
        self._spans.append(span)

    def beside(self, job: str, link: str, opened_s: float, closed_s: float) -> float:
        """What other jobs carried on a link from `opened_s` to `closed_s` (payload, bit/s), as far as it is known.

        Spans of a job that only partly fall into that time stand for all of it.
        """
        known: dict[str, tuple[float, float]] = {}
        for span in self._spans:
            shared_s = min(closed_s, span.closed_s) - max(opened_s, span.opened_s)
            if span.job != job and shared_s > 0:
                bits, lasted_s = known.get(span.job, (0.0, 0.0))
                known[span.job] = bits + span.bps.get(link, 0.0) * shared_s, lasted_s + shared_s
        return sum(bits / lasted_s for bits, lasted_s in known.values())


class TrafficArrivals:
    """When connections of which job began to carry, or did so again after a while; shared by all jobs' detectors."""

    def __init__(self) -> None:
        self._arrivals: deque[TrafficArrival] = deque(maxlen=KEPT)

    def ingest(self, arrival: TrafficArrival) -> None:
        """Note that connections of a job began to carry."""
        self._arrivals.append(arrival)

    def explains(self, job: str, cells: Collection[Cell], links: Links, since_s: float, until_s: float) -> bool:
        """Whether all these cells of a job met arriving traffic of another job when they became slow."""
        others = self._others(job, since_s, until_s)
        return all(any(_meet(cell, links.get(cell, ()), one) for one in others) for cell in cells)

    def _others(self, job: str, since_s: float, until_s: float) -> list[TrafficArrival]:
        """A connection is seen to carry once a message has arrived, which others feel before."""
        return [
            one
            for one in self._arrivals
            if one.job != job and since_s <= one.closed_s and until_s >= 2 * one.opened_s - one.closed_s
        ]


def arrival(job: str, opened_s: float, closed_s: float, cells: Collection[Cell], links: Links) -> TrafficArrival:
    """That cells of a job began to carry in a span of its delay matrix."""
    nics = frozenset(nic for cell in cells for nic in cell[:2])
    hops = frozenset(hop for cell in cells for hop in links.get(cell, ()))
    return TrafficArrival(job, opened_s, closed_s, nics, hops, all(links.get(cell) for cell in cells))


def _meet(cell: Cell, links: Collection[str], arrival: TrafficArrival) -> bool:
    """Whether they meet at a NIC or on a link; assumed where the links of either are not known."""
    if not (links and arrival.known):
        return True
    return not arrival.nics.isdisjoint(cell[:2]) or not arrival.links.isdisjoint(links)


class SharedFabric:
    """What C4P has learnt so far; without C4P no path is known and no link is missing."""

    def __init__(self, paths: PathLinks | None = None, arrivals: TrafficArrivals | None = None) -> None:
        self.paths = KnownPaths(paths)
        self.missing: tuple[MissingLink, ...] = ()
        self.rates: Mapping[str, float] = {}  # bit/s, by link
        self.arrivals = arrivals or TrafficArrivals()
        self.carried = CarriedTraffic()
        self._unpolled: deque[TrafficRecord] = deque(maxlen=KEPT)

    def share(self, record: TrafficRecord) -> None:
        """Share what a detector has seen of its job's traffic."""
        self._unpolled.append(record)
        self.ingest(record)

    def poll(self) -> list[TrafficRecord]:
        """Return what was shared since the last call."""
        unpolled = list(self._unpolled)
        self._unpolled.clear()
        return unpolled

    def ingest(self, record: FabricRecord) -> None:
        """Ingest what C4P has learnt, or what another detector has seen of its job's traffic."""
        match record:
            case PathsLearnt():
                self.paths.learn(record.ways)
            case LinksMissing():
                self.missing = record.links
            case LinkRates():
                self.rates = record.bps
            case TrafficArrival():
                self.arrivals.ingest(record)
            case TrafficCarried():
                self.carried.ingest(record)

    def snapshot(self, now_s: float, nics: Collection[str]) -> tuple[PlannerRecord, ...]:
        """All that a new job's recording needs to begin with, for these NICs."""
        paths = tuple((*path, hops) for path, hops in sorted(self.paths.items()) if path[1] in nics)
        rates = (LinkRates(now_s, dict(self.rates)),) if self.rates else ()
        return PathsLearnt(now_s, paths), LinksMissing(now_s, self.missing), *rates
