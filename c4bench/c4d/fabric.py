"""What the detectors of all jobs on a fabric share: where paths lead, what is missing, and who else is there."""

from collections.abc import Collection

from c4bench.c4d.company import Company
from c4bench.c4d.routes import Routes, Ways
from c4bench.model.fabric import MissingLink
from c4bench.model.recording import Arrival, LinksMissing, WaysLearnt


class Fabric:
    """As far as C4P has learnt it by now; without C4P nothing is known of paths, and nothing is missing."""

    def __init__(self, ways: Ways | None = None, company: Company | None = None) -> None:
        self.ways = Routes(ways)
        self.missing: tuple[MissingLink, ...] = ()
        self.company = company or Company()

    def hear(self, news: WaysLearnt | LinksMissing | Arrival) -> None:
        """C4P has learnt something, or another job has come."""
        match news:
            case WaysLearnt():
                self.ways.learn(news.ways)
            case LinksMissing():
                self.missing = news.links
            case Arrival():
                self.company.hear(news)

    def told(self, now_s: float, nics: Collection[str]) -> tuple[WaysLearnt, LinksMissing]:
        """All that somebody who begins now has to hear, if these NICs are all that matter."""
        ways = tuple((*way, hops) for way, hops in sorted(self.ways.items()) if way[1] in nics)
        return WaysLearnt(now_s, ways), LinksMissing(now_s, self.missing)
