"""Where ways lead, as far as C4P has learnt it."""

from collections.abc import Iterable, Mapping

from c4bench.model.recording import Way

# The far addresses of a way's links, by its source, destination and source port.
PathLinks = Mapping[tuple[str, str, int], tuple[str, ...]]


class KnownPaths(dict[tuple[str, str, int], tuple[str, ...]]):
    """Ways that become more; `learnt` is another number whenever something has been learnt."""

    def __init__(self, paths: PathLinks | None = None) -> None:
        super().__init__(paths or {})
        self.learnt = 0

    def learn(self, paths: Iterable[Way]) -> None:
        """C4P has learnt where these lead."""
        self.update((way[:3], way[3]) for way in paths)
        self.learnt += 1
