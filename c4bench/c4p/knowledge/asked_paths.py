"""The paths from which a search infers links, also after the fabric has changed. Pure."""

from collections.abc import Mapping

from c4bench.c4p.knowledge.atlas import Probe


class AskedPaths:
    """Complete paths of which every switch was asked, and those that a whole search has found.

    What a search finds counts after the next change only once the search has ended with no link missing: until then
    paths may have changed from one answer to the next, and the paths found are those over switches that answered first.
    """

    def __init__(self) -> None:
        self._lasting: dict[Probe, tuple[str, ...]] = {}
        self._passing: dict[Probe, tuple[str, ...]] = {}

    @property
    def paths(self) -> Mapping[Probe, tuple[str, ...]]:
        """The switches on each path. Of a source port the first found: where two ways were there may be two again."""
        return self._passing | self._lasting

    def note(self, probe: Probe, path: tuple[str, ...]) -> None:
        """Note a complete path that a search has found."""
        self._passing.setdefault(probe, path)

    def forget(self) -> None:
        """The fabric has changed."""
        self._passing.clear()

    def keep(self, found: Mapping[Probe, tuple[str, ...]]) -> None:
        """The search has ended: nothing changed meanwhile, no link is missing, and it `found` these paths.

        They count though not all of their switches were asked, as they are among all paths of their pairs.
        """
        self._lasting = {**found, **self._passing, **self._lasting}
        self.forget()
