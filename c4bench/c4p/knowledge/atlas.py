"""Which UDP source port takes which way through the fabric, as probing found it."""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, Self

import msgspec

from c4bench.errors import UsageError
from c4bench.model.fabric import Path

Probe = tuple[str, str, int]
Way = tuple[int, ...]


class PathTrace(msgspec.Struct, frozen=True):
    """What one source port's probes heard: `hops` in order, `None` where a TTL stayed silent."""

    source: str
    destination: str
    source_port: int
    hops: tuple[str | None, ...]


class EcmpGroup(NamedTuple):
    """A choice that many pairs share, such as all those between two leaves.

    `ways[i]` are the links (indices into `Atlas.hops`) that way i does not have in common with all others, `places`
    their positions among the hops. `number` is the fan's index in `Atlas.fans`.
    """

    number: int
    places: tuple[int, ...]
    ways: tuple[Way, ...]


class PairPaths(NamedTuple):
    """The distinct ways between two NICs: way i of `fan` is reached by `source_ports[i]`.

    `common` are the links that every way crosses.
    """

    source_ports: tuple[int, ...]
    common: Way
    fan: EcmpGroup

    def hops(self, way: int) -> Way:
        """All links of a way, in the order in which they are crossed."""
        links = list(self.common)
        for place, link in zip(self.fan.places, self.fan.ways[way], strict=True):
            links.insert(place, link)
        return tuple(links)


class _Document(msgspec.Struct, frozen=True):
    """The atlas as JSON."""

    hops: tuple[str, ...]
    pairs: tuple[tuple[str, str, tuple[tuple[int, Way], ...]], ...]
    incomplete: int


class Atlas:
    """The paths between NICs, distinct by hops, each with the lowest source port that takes it.

    `hops` are all addresses seen, in sorted order; `fans` the distinct choices between them; `incomplete` counts the
    answers that were left out because a hop stayed silent, or because they were shorter than the pair's others. Build
    with `from_answers`.
    """

    def __init__(
        self,
        hops: tuple[str, ...],
        fans: tuple[EcmpGroup, ...],
        routes: Mapping[tuple[str, str], PairPaths],
        incomplete: int,
    ) -> None:
        self.hops = hops
        self.fans = fans
        self.incomplete = incomplete
        self._routes = dict(routes)

    @classmethod
    def from_answers(cls, answers: Mapping[Probe, tuple[str | None, ...]] | Iterable[PathTrace]) -> Self:
        """Build from `{(source NIC, destination NIC, source port): hops}` or from `PathTrace`s, in any order."""
        if isinstance(answers, Mapping):
            answers = (
                PathTrace(source, destination, port, hops) for (source, destination, port), hops in answers.items()
            )
        heard = list(answers)
        lengths: dict[tuple[str, str], int] = {}
        for answer in heard:
            pair = answer.source, answer.destination
            lengths[pair] = max(lengths.get(pair, 1), len(answer.hops))
        lowest: dict[tuple[str, str], dict[tuple[str, ...], int]] = {pair: {} for pair in sorted(lengths)}
        incomplete = 0
        for answer in heard:
            pair, hops = (answer.source, answer.destination), _complete(answer.hops)
            if len(hops) < lengths[pair]:
                incomplete += 1
                continue
            ports = lowest[pair]
            ports[hops] = min(ports.get(hops, answer.source_port), answer.source_port)
        return cls(*_index(lowest), incomplete)

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """Every (source, destination) that was probed, in sorted order; some may have no complete path."""
        return tuple(self._routes)

    def paths(self, source: str, destination: str) -> tuple[Path, ...]:
        """The known paths of a pair in order of their hops; none for a pair that was not probed or never answered."""
        routes = self.routes(source, destination)
        return tuple(self.path(routes, way) for way in range(len(routes.source_ports)))

    def path(self, routes: PairPaths, way: int) -> Path:
        """One way of a pair's routes, by the hops' addresses."""
        names = self.hops
        return Path(routes.source_ports[way], tuple([names[hop] for hop in routes.hops(way)]))

    def routes(self, source: str, destination: str) -> PairPaths:
        """The same as indices, for a planner's inner loop."""
        return self._routes.get((source, destination), NOWHERE)

    def to_json(self) -> bytes:
        """A document that `from_json` reads; equal atlases give equal bytes."""
        pairs = tuple((*pair, tuple(_numbered(routes))) for pair, routes in self._routes.items())
        return msgspec.json.encode(_Document(self.hops, pairs, self.incomplete))

    @classmethod
    def from_json(cls, data: bytes) -> Self:
        """Read what `to_json` wrote. Raises UsageError for anything else."""
        try:
            document = msgspec.json.decode(data, type=_Document)
            lowest = {
                (source, destination): {tuple(document.hops[hop] for hop in hops): port for port, hops in ways}
                for source, destination, ways in document.pairs
            }
        except (msgspec.MsgspecError, IndexError) as error:
            raise UsageError(f"this is not an atlas ({error}); write one with Atlas.to_json") from None
        return cls(*_index(lowest), document.incomplete)


NOWHERE = PairPaths((), (), EcmpGroup(-1, (), ()))


def _complete(hops: tuple[str | None, ...]) -> tuple[str, ...]:
    """The hops when every one answered, else nothing."""
    heard = tuple(hop for hop in hops if hop is not None)
    return heard if len(heard) == len(hops) else ()


def _numbered(routes: PairPaths) -> Iterator[tuple[int, Way]]:
    return ((port, routes.hops(way)) for way, port in enumerate(routes.source_ports))


def _index(
    lowest: Mapping[tuple[str, str], Mapping[tuple[str, ...], int]],
) -> tuple[tuple[str, ...], tuple[EcmpGroup, ...], dict[tuple[str, str], PairPaths]]:
    names = tuple(sorted({hop for ways in lowest.values() for hops in ways for hop in hops}))
    number = {name: index for index, name in enumerate(names)}
    fans: dict[tuple[Way, tuple[Way, ...]], EcmpGroup] = {}
    routes = {}
    for pair, ways in lowest.items():
        ordered = sorted((tuple([number[hop] for hop in hops]), port) for hops, port in ways.items())
        common, places, rest = _split([hops for hops, _ in ordered])
        fan = fans.setdefault((places, rest), EcmpGroup(len(fans), places, rest)) if ordered else NOWHERE.fan
        routes[pair] = PairPaths(tuple([port for _, port in ordered]), common, fan)
    return names, tuple(fans.values()), routes


def _split(ways: list[Way]) -> tuple[Way, Way, tuple[Way, ...]]:
    """What all ways have in common; where they differ; and the rest of each.

    All routes of a pair have the same length, and a link has its place: what is common fills a whole column.
    """
    columns = list(zip(*ways, strict=True))
    places = tuple([place for place, column in enumerate(columns) if len(set(column)) > 1])
    common = tuple([column[0] for place, column in enumerate(columns) if place not in places])
    varying = [columns[place] for place in places]
    return common, places, tuple(zip(*varying, strict=True)) or ((),) * len(ways)
