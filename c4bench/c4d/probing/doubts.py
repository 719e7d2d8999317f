"""Findings that probes may make more exact: what to send next, and what the answers leave of each finding."""

from collections import deque
from collections.abc import Collection

from c4bench.c4d.diagnosis import Alarmed, Finding
from c4bench.c4d.ingest.known_paths import PathLinks
from c4bench.c4d.probing.doubt import Doubt, LossDoubt, SlowDoubt
from c4bench.c4d.probing.expiring_probes import CanAnswer
from c4bench.c4d.probing.weighing import Flow
from c4bench.model.diagnosis import Cause, Component
from c4bench.model.recording import DeliveriesCounted, DoubtReport, ExpiringProbe, ProbingEnded, TrainsTimed

# What loses packets, all or some, or reorders them.
_LOSSY = frozenset({Cause.CONNECTION_STALLED, Cause.CONNECTION_LOST, Cause.PACKETS_LOST})
# Doubts that nobody has probed for are forgotten when there are so many newer ones.
_KEPT = 16
# So many paths that have nothing to do with a doubt are compared with those that do.
_APART = 2


class Doubts:
    """The open doubts of one job."""

    def __init__(self, paths: PathLinks) -> None:
        self._paths = paths
        self._open: deque[Doubt] = deque(maxlen=_KEPT)
        self._ended: list[Doubt] = []
        self._named: deque[frozenset[Component]] = deque(maxlen=_KEPT)
        # Those that probes have made more exact, by what is left of their suspects.
        self._refined: deque[tuple[frozenset[Component], Doubt]] = deque(maxlen=_KEPT)

    @property
    def any_open(self) -> bool:
        """Whether there is a doubt that nobody has probed for to the end."""
        return bool(self._open)

    def add(self, finding: Finding, alarmed_s: float, nics: Collection[str]) -> None:
        """Note a new finding, and open a doubt if probes between these NICs of the job may end it."""
        self._named.append(frozenset(finding.suspects))
        if finding.cause in _LOSSY and (finding.alternatives or _without_side(finding)):
            self._open.append(LossDoubt(finding, alarmed_s, self._relevant(self._named[-1], nics)))
        if finding.cause is Cause.TRANSFER_SLOW and finding.alternatives:
            relevant = self._relevant(self._named[-1], nics)
            self._open.append(SlowDoubt(finding, alarmed_s, {**relevant, **self._back(relevant)}))

    def _relevant(self, suspects: Collection[Component], nics: Collection[str]) -> PathLinks:
        """The paths between these NICs that have to do with suspects, and some that do not, to compare them with.

        A path whose links nobody knows is none of them: a flow with a source port of the NIC's choice has such a path.
        """
        names = {part for one in suspects for part in (one.name.split(">") if one.kind == "path" else [one.name])}
        known = (path for path, hops in self._paths.items() if hops)
        between = (path for path in known if path[0] != path[1] and path[0] in nics and path[1] in nics)
        near: dict[Flow, tuple[str, ...]] = {}
        apart: dict[Flow, tuple[str, ...]] = {}
        for path in between:
            hops = self._paths[path]
            if not names.isdisjoint((*path[:2], *hops)):
                near[path] = hops
            elif len(apart) < _APART:
                apart[path] = hops
        return near | apart

    def _back(self, paths: Collection[Flow]) -> PathLinks:
        """The known ways back of paths."""
        pairs = {(destination, source) for source, destination, _ in paths}
        return {path: hops for path, hops in self._paths.items() if hops and path[:2] in pairs}

    def next_probes(self, can_answer: CanAnswer) -> dict[ExpiringProbe, str]:
        """The fewest further packets that expire on the way for all doubts, with the address that should answer each.

        Of one path only one at a time.
        """
        wanted: dict[tuple[str, str, int], ExpiringProbe] = {}
        for doubt in self._open:
            for probe in doubt.next_probes(can_answer):
                wanted.setdefault(probe[:3], probe)
        return {probe: self._paths[path][probe.hops - 1] for path, probe in wanted.items()}

    def next_flows(self) -> tuple[Flow, ...]:
        """The flows on which to send numbered packets for all doubts."""
        return tuple(dict.fromkeys(flow for doubt in self._open for flow in doubt.next_flows()))

    def next_trains(self) -> tuple[Flow, ...]:
        """The flows on which to send packet trains for all doubts."""
        return tuple(dict.fromkeys(flow for doubt in self._open for flow in doubt.next_trains()))

    def ingest(self, record: DoubtReport) -> None:
        """Take in what probes have shown, or that there will be no more. What was sent for one doubt tells all."""
        known = {flow: hops for flow in _flows(record) if (hops := self._paths.get(flow))}
        for doubt in self._open:
            doubt.paths = {**doubt.paths, **known}
            doubt.ingest(record)
        if isinstance(record, ProbingEnded):
            self._ended += self._open
            self._open.clear()

    def ended(self) -> list[Alarmed]:
        """Once, after the last probe: the findings that probes have made more exact, with the times of their alarms.

        What has been named before, or is left of several, is not named again.
        """
        ended, self._ended = self._ended, []
        refined: list[Alarmed] = []
        for doubt in ended:
            left = doubt.left(self._named)
            if frozenset(left) not in self._named:
                self._named.append(frozenset(left))
                self._refined.append((frozenset(left), doubt))
                refined.append((doubt.refined(left), doubt.alarmed_s))
        return refined

    def behind(self, left: Collection[Component]) -> Doubt | None:
        """The newest doubt of whose suspects probes have left these; None if it is forgotten."""
        return next((doubt for named, doubt in reversed(self._refined) if named == frozenset(left)), None)


def _flows(record: DoubtReport) -> tuple[Flow, ...]:
    """The flows on which packets were sent that a report is about."""
    match record:
        case DeliveriesCounted():
            return tuple(one[:3] for one in record.deliveries)
        case TrainsTimed():
            return tuple(one[:3] for one in record.flows)
    return ()


def _without_side(finding: Finding) -> bool:
    return finding.cause is Cause.PACKETS_LOST and finding.component.kind == "nic" and not finding.component.side
