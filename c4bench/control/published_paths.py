"""What C4P has told others about the fabric, so that each change is told once."""

import logging
import time
from collections.abc import Callable, Mapping

from c4bench.model.fabric import Flow, MissingLink, Path
from c4bench.model.recording import LinkRates, LinksMissing, PathsLearnt, PlannerRecord

_logger = logging.getLogger(__name__)


class PublishedPaths:
    """Calls `publish` with what is new: paths by pair of NICs and source port, missing links, and rates of links."""

    def __init__(self, publish: Callable[[PlannerRecord], None]) -> None:
        self._publish = publish
        self._paths: dict[tuple[str, str, int], tuple[str, ...]] = {}
        self._missing: tuple[MissingLink, ...] = ()
        self._rates: Mapping[str, float] = {}

    def paths(self, paths: Mapping[tuple[str, str, int], tuple[str, ...]]) -> None:
        """Publish the paths that are new, or lead elsewhere now."""
        new = {key: hops for key, hops in paths.items() if self._paths.get(key) != hops}
        if new:
            self._paths |= new
            self._publish(PathsLearnt(time.time(), tuple((*key, hops) for key, hops in sorted(new.items()))))

    def placed(self, flows: Mapping[Flow, Path]) -> None:
        """Publish the paths of these flows that are new, or lead elsewhere now."""
        self.paths({(flow.source, flow.destination, path.source_port): path.hops for flow, path in flows.items()})

    def missing(self, links: tuple[MissingLink, ...]) -> None:
        """Publish and log the missing links, if they are others than before."""
        if links != self._missing:
            names = ", ".join(link.name for link in links)
            level = logging.WARNING if names else logging.INFO
            _logger.log(level, "links missing: %s", names or "none", extra={"links": names})
            self._missing = links
            self._publish(LinksMissing(time.time(), links))

    def rates(self, bps: Mapping[str, float]) -> None:
        """Publish the rates of links, bit/s by hop, if they are others than before."""
        if bps != self._rates:
            self._rates = bps
            self._publish(LinkRates(time.time(), dict(bps)))
