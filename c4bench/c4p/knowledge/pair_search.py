"""What a search for the paths of one pair of NICs has found so far. Pure."""

import itertools
from collections.abc import Mapping

import msgspec

from c4bench.c4p.knowledge.sample import Traced

# The addresses of a path's switches that are known, by their position, counted from 0.
Answers = Mapping[int, str]


class PairSearch(msgspec.Struct):
    """The search for one pair's paths: the ports not traced yet, and the switches found so far by port and position.

    `switches` is how many there are on a path, 0 if that is not known. Ports `ahead` are asked about first. The paths
    of ports in `needed` are wanted whatever they are. Those of `matched` ports are the only known ones that fit some of
    their switches; `skipped` are ports that take a path that is known already.
    """

    switches: int
    untraced: list[int]
    needed: frozenset[int] = frozenset()
    ahead: frozenset[int] = frozenset()
    answers: dict[int, dict[int, str]] = {}
    matched: set[int] = set()
    skipped: set[int] = set()
    returned: set[int] = set()
    done: bool = False

    def open_further(self, count: int) -> None:
        """Begin to trace ports until there are `count` of them, as far as there are more."""
        while self.untraced and len(self.open_ports()) < count:
            self.answers[self.untraced.pop(0)] = {}

    def open_ports(self) -> list[int]:
        """The ports whose path is not known to its end."""
        return [port for port, found in self.answers.items() if port not in self.skipped and not self._ended(found)]

    def complete(self) -> dict[int, tuple[str, ...]]:
        """The ports whose path is known to its end."""
        return {port: leading(found) for port, found in self.answers.items() if found and self._ended(found)}

    def random(self, port: int) -> bool:
        """Whether a port counts as a random one: not if it is asked because its path was known before."""
        return port in self.needed or port not in self.ahead

    def match(self, port: int, path: tuple[str, ...]) -> None:
        """Take a known path for that of a port, since no other fits its answers."""
        self.answers[port] = dict(enumerate(path))
        self.matched.add(port)

    @property
    def traced(self) -> Traced:
        """What shows whether there are other paths: ports chosen at random that are neither matched nor skipped."""
        complete = self.complete().keys() - self.matched
        ports = [port for port in self.answers if self.random(port)]
        return Traced(len(ports), sum(1 for _ in itertools.takewhile(complete.__contains__, ports)))

    def _ended(self, found: Answers) -> bool:
        return bool(self.switches) and len(found) == self.switches


def leading(answers: Answers) -> tuple[str, ...]:
    """The switches of a path up to the first one that is not known."""
    return tuple(itertools.takewhile(bool, (answers.get(position, "") for position in range(len(answers)))))
