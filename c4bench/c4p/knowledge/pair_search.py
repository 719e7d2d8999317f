"""What a search for the paths of one pair of NICs has found so far. Pure."""

import itertools

import msgspec


class PairSearch(msgspec.Struct):
    """The search for one pair's paths: the ports not traced yet, and the switches found so far by port.

    `switches` is how many there are on a path, 0 if that is not known.
    """

    switches: int
    untraced: list[int]
    hops: dict[int, list[str]] = {}
    returned: set[int] = set()
    done: bool = False

    def open_ports(self) -> list[int]:
        """The ports whose path is not known to its end."""
        return [port for port, hops in self.hops.items() if not self.switches or len(hops) < self.switches]

    def complete(self) -> dict[int, list[str]]:
        """The ports whose path is known to its end."""
        return {port: hops for port, hops in self.hops.items() if 0 < len(hops) == self.switches}

    def sample_size(self) -> int:
        """How many traces are a random sample of the paths: those before the first one that is not complete.

        Traces over a switch that has answers left are completed before others, whatever share of paths it has.
        """
        complete = self.complete()
        return sum(1 for _ in itertools.takewhile(complete.__contains__, self.hops))
