"""Which UDP source port takes which way through the fabric, as probing found it."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple, Self

import msgspec

from c4bench.errors import UsageError
from c4bench.model.fabric import Path

Probe = tuple[str, str, int]


class Answer(msgspec.Struct, frozen=True):
    """What one source port's probes heard: `hops` in order, `None` where a TTL stayed silent."""

    source: str
    destination: str
    source_port: int
    hops: tuple[str | None, ...]


class Routes(NamedTuple):
    """The distinct ways between two NICs: `hops[i]` (indices into `Atlas.hops`) is reached by `source_ports[i]`.

    Pairs with the same ways share one `hops` object, whatever ports lead there.
    """

    source_ports: tuple[int, ...]
    hops: tuple[tuple[int, ...], ...]


class _Document(msgspec.Struct, frozen=True):
    """The atlas as JSON."""

    hops: tuple[str, ...]
    pairs: tuple[tuple[str, str, tuple[tuple[int, tuple[int, ...]], ...]], ...]
    incomplete: int


class Atlas:
    """The paths between NICs, distinct by hops, each with the lowest source port that takes it.

    `hops` are all addresses seen, in sorted order; `incomplete` counts the answers that were left out because a hop
    stayed silent, or because they were shorter than the pair's others. Build with `from_answers`.
    """

    def __init__(self, hops: tuple[str, ...], routes: Mapping[tuple[str, str], Routes], incomplete: int) -> None:
        self.hops = hops
        self.incomplete = incomplete
        self._routes = dict(routes)

    @classmethod
    def from_answers(cls, answers: Mapping[Probe, tuple[str | None, ...]] | Iterable[Answer]) -> Self:
        """Build from `{(source NIC, destination NIC, source port): hops}` or from `Answer`s, in any order."""
        if isinstance(answers, Mapping):
            answers = (Answer(source, destination, port, hops) for (source, destination, port), hops in answers.items())
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
        ways = zip(routes.source_ports, routes.hops, strict=True)
        return tuple(Path(port, tuple(self.hops[hop] for hop in hops)) for port, hops in ways)

    def routes(self, source: str, destination: str) -> Routes:
        """The same as indices, for a planner's inner loop."""
        return self._routes.get((source, destination), _NOWHERE)

    def to_json(self) -> bytes:
        """A document that `from_json` reads; equal atlases give equal bytes."""
        pairs = tuple(
            (source, destination, tuple(zip(routes.source_ports, routes.hops, strict=True)))
            for (source, destination), routes in self._routes.items()
        )
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


_NOWHERE = Routes((), ())


def _complete(hops: tuple[str | None, ...]) -> tuple[str, ...]:
    """The hops when every one answered, else nothing."""
    heard = tuple(hop for hop in hops if hop is not None)
    return heard if len(heard) == len(hops) else ()


def _index(
    lowest: Mapping[tuple[str, str], Mapping[tuple[str, ...], int]],
) -> tuple[tuple[str, ...], dict[tuple[str, str], Routes]]:
    names = tuple(sorted({hop for ways in lowest.values() for hops in ways for hop in hops}))
    number = {name: index for index, name in enumerate(names)}
    shared: dict[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]] = {}
    routes = {}
    for pair, ways in lowest.items():
        ordered = sorted((tuple(number[hop] for hop in hops), port) for hops, port in ways.items())
        ways_taken = tuple(hops for hops, _ in ordered)
        routes[pair] = Routes(tuple(port for _, port in ordered), shared.setdefault(ways_taken, ways_taken))
    return names, routes
