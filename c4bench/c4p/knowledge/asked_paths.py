"""The paths from which a search infers links, also after the fabric has changed. Pure."""

from collections.abc import Mapping

from c4bench.c4p.knowledge.atlas import Probe


class AskedPaths:
    """Complete paths of which every switch was asked, and those that a whole search has found.

    Some do not count after the next change: a path that was asked in several rounds may have changed between them, and
    while links are missing there are fewer paths than when they are back.
    """

    def __init__(self) -> None:
        self._lasting: dict[Probe, tuple[str, ...]] = {}
        self._passing: dict[Probe, tuple[str, ...]] = {}
        self._asked_since: dict[Probe, int] = {}
        self._round = 0

    @property
    def paths(self) -> Mapping[Probe, tuple[str, ...]]:
        """The switches on each path. Of a source port the first found: where two ways were there may be two again."""
        return self._passing | self._lasting

    def begin_round(self) -> None:
        """Answers from now on are of another round."""
        self._round += 1

    def note_answer(self, probe: Probe, path: tuple[str, ...] | None, *, missing: bool) -> None:
        """Note that a switch of this probe's path has answered, and the `path` if it is complete now.

        `missing` is whether links of the fabric are.
        """
        since = self._asked_since.setdefault(probe, self._round)
        if path:
            counted = self._passing if missing or since < self._round else self._lasting
            counted.setdefault(probe, path)

    def forget(self) -> None:
        """The fabric has changed."""
        self._passing.clear()
        self._asked_since.clear()

    def keep(self, found: Mapping[Probe, tuple[str, ...]]) -> None:
        """The search has ended: nothing changed meanwhile, no link is missing, and it `found` these paths.

        They count though not all of their switches were asked, as they are among all paths of their pairs.
        """
        self._lasting = {**found, **self._passing, **self._lasting}
        self.forget()
