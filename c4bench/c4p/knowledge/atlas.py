"""The atlas: which UDP source port takes which path through the fabric, as probing found it."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, NamedTuple, Self

import msgspec

from c4bench.decoding import DecodingError, from_json
from c4bench.errors import UsageError
from c4bench.model.fabric import FIVE_TUPLE, Hash, Path

# Source NIC, destination NIC.
Pair = tuple[str, str]
# Source NIC, destination NIC, source port.
Probe = tuple[str, str, int]
# The links of a path in order, as indices into `Atlas.hops`.
LinkPath = tuple[int, ...]
# The links of a path by address, without the first and the last, which lead from and to a NIC.
InnerPath = tuple[str, ...]


class Question(NamedTuple):
    """A question to a switch: is it the one at `position`, counted from 0, of this source port's path, or which is."""

    pair: Pair
    source_port: int
    position: int


class PathTrace(msgspec.Struct, frozen=True):
    """The answers to one source port's probes: `hops` in order, `None` for each TTL that nobody answered."""

    source: str
    destination: str
    source_port: int
    hops: tuple[str | None, ...]


class EcmpGroup(NamedTuple):
    """An ECMP group: paths that flows choose among. Many pairs share it, such as all those between two leaves.

    `paths[i]` are the links of path i that not all paths cross; `positions` are their places among the hops. `number`
    is the group's index in `Atlas.groups`.
    """

    number: int
    positions: tuple[int, ...]
    paths: tuple[LinkPath, ...]


class PairPaths(NamedTuple):
    """The distinct paths between two NICs: source port `source_ports[i]` takes path i of `group`.

    `common` are the links that every path crosses.
    """

    source_ports: tuple[int, ...]
    common: LinkPath
    group: EcmpGroup

    def hops(self, index: int) -> LinkPath:
        """All links of a path, in the order in which they are crossed."""
        links = list(self.common)
        for position, link in zip(self.group.positions, self.group.paths[index], strict=True):
            links.insert(position, link)
        return tuple(links)


# A UDP source port.
_Port = Annotated[int, msgspec.Meta(ge=1, le=65_535)]


class _Document(msgspec.Struct, frozen=True):
    """The atlas as JSON."""

    hops: tuple[str, ...]
    pairs: tuple[tuple[str, str, tuple[tuple[_Port, LinkPath], ...]], ...]
    incomplete: int
    hash: Hash | msgspec.UnsetType = msgspec.UNSET


class Atlas:
    """The paths between NICs, distinct by hops, each with the lowest source port that takes it.

    `hops` are all addresses that answered, sorted. `groups` are the distinct ECMP groups. `incomplete` counts traces
    that were left out because a hop did not answer, or because they were shorter than the pair's others. `hash` is what
    switches choose paths by: with queue pairs, the source ports are only those of packets to none. Build an atlas with
    `from_answers`.
    """

    def __init__(
        self,
        hops: tuple[str, ...],
        groups: tuple[EcmpGroup, ...],
        paths: Mapping[tuple[str, str], PairPaths],
        incomplete: int,
        hash: Hash = FIVE_TUPLE,  # noqa: A002
    ) -> None:
        self.hash = hash
        self.hops = hops
        self.groups = groups
        self.incomplete = incomplete
        self._paths = dict(paths)

    @classmethod
    def from_answers(cls, answers: Mapping[Probe, tuple[str | None, ...]] | Iterable[PathTrace]) -> Self:
        """Build from `{(source NIC, destination NIC, source port): hops}` or from `PathTrace`s, in any order."""
        if isinstance(answers, Mapping):
            answers = (
                PathTrace(source, destination, port, hops) for (source, destination, port), hops in answers.items()
            )
        traces = list(answers)
        lengths: dict[tuple[str, str], int] = {}
        for trace in traces:
            pair = trace.source, trace.destination
            lengths[pair] = max(lengths.get(pair, 1), len(trace.hops))
        lowest_ports: dict[tuple[str, str], dict[tuple[str, ...], int]] = {pair: {} for pair in sorted(lengths)}
        incomplete = 0
        for trace in traces:
            pair, hops = (trace.source, trace.destination), _complete(trace.hops)
            if len(hops) < lengths[pair]:
                incomplete += 1
                continue
            ports = lowest_ports[pair]
            ports[hops] = min(ports.get(hops, trace.source_port), trace.source_port)
        return cls(*_index(lowest_ports), incomplete)

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """Every (source, destination) that was probed, sorted; some may have no complete path."""
        return tuple(self._paths)

    def paths(self, source: str, destination: str) -> tuple[Path, ...]:
        """The known paths of a pair in order of their hops; none for a pair that was not probed or never answered."""
        paths = self.pair_paths(source, destination)
        return tuple(self.path(paths, index) for index in range(len(paths.source_ports)))

    def path(self, paths: PairPaths, index: int) -> Path:
        """Path `index` of a pair, by the hops' addresses."""
        names = self.hops
        return Path(paths.source_ports[index], tuple([names[hop] for hop in paths.hops(index)]))

    def pair_paths(self, source: str, destination: str) -> PairPaths:
        """The known paths of a pair as indices, for the planner's inner loop."""
        return self._paths.get((source, destination), NO_PATHS)

    def to_json(self) -> bytes:
        """A document that `from_json` reads; equal atlases give equal bytes."""
        pairs = tuple((*pair, tuple(_by_port(paths))) for pair, paths in self._paths.items())
        known = msgspec.UNSET if self.hash == FIVE_TUPLE else self.hash
        return msgspec.json.encode(_Document(self.hops, pairs, self.incomplete, known))

    @classmethod
    def from_json(cls, data: bytes) -> Self:
        """Read what `to_json` wrote. Raises UsageError for anything else."""
        try:
            document = from_json(data, _Document)
            lowest_ports = {
                (source, destination): {tuple(document.hops[hop] for hop in hops): port for port, hops in paths}
                for source, destination, paths in document.pairs
            }
        except (DecodingError, IndexError) as error:
            raise UsageError(f"this is not an atlas ({error}); write one with Atlas.to_json") from None
        if uneven := next((pair for pair, paths in lowest_ports.items() if len(set(map(len, paths))) > 1), None):
            raise UsageError(f"this is not an atlas (paths of {uneven} differ in length); write one with Atlas.to_json")
        known = FIVE_TUPLE if document.hash is msgspec.UNSET else document.hash
        return cls(*_index(lowest_ports), document.incomplete, known)


NO_PATHS = PairPaths((), (), EcmpGroup(-1, (), ()))


def _complete(hops: tuple[str | None, ...]) -> tuple[str, ...]:
    """The hops if every one answered, else nothing."""
    answered = tuple(hop for hop in hops if hop is not None)
    return answered if len(answered) == len(hops) else ()


def _by_port(paths: PairPaths) -> Iterator[tuple[int, LinkPath]]:
    return ((port, paths.hops(index)) for index, port in enumerate(paths.source_ports))


def _index(
    lowest_ports: Mapping[tuple[str, str], Mapping[tuple[str, ...], int]],
) -> tuple[tuple[str, ...], tuple[EcmpGroup, ...], dict[tuple[str, str], PairPaths]]:
    """Number hops and ECMP groups; `lowest_ports` are the lowest source port by pair and hops."""
    names = tuple(sorted({hop for ports in lowest_ports.values() for hops in ports for hop in hops}))
    number = {name: index for index, name in enumerate(names)}
    groups: dict[tuple[LinkPath, tuple[LinkPath, ...]], EcmpGroup] = {}
    paths = {}
    for pair, ports in lowest_ports.items():
        ordered = sorted((tuple([number[hop] for hop in hops]), port) for hops, port in ports.items())
        common, positions, rest = _split([hops for hops, _ in ordered])
        group = EcmpGroup(len(groups), positions, rest)
        group = groups.setdefault((positions, rest), group) if ordered else NO_PATHS.group
        paths[pair] = PairPaths(tuple([port for _, port in ordered]), common, group)
    return names, tuple(groups.values()), paths


def _split(paths: list[LinkPath]) -> tuple[LinkPath, tuple[int, ...], tuple[LinkPath, ...]]:
    """The links that all paths cross, the positions at which paths differ, and the links of each path there.

    All paths of a pair have the same length, and a link has one position: a common link fills a whole column.
    """
    columns = list(zip(*paths, strict=True))
    positions = tuple([position for position, column in enumerate(columns) if len(set(column)) > 1])
    common = tuple([column[0] for position, column in enumerate(columns) if position not in positions])
    varying = [columns[position] for position in positions]
    return common, positions, tuple(zip(*varying, strict=True)) or ((),) * len(paths)
