"""How much each job carries on which links while packets come marked; shared by all jobs' detectors."""

from collections import deque

from c4bench.model.recording import TrafficCarried

# Spans that are kept, of all jobs together: the latest, in which a slowdown may be explained.
_KEPT = 256


class CarriedTraffic:
    """What jobs have carried in their latest spans."""

    def __init__(self) -> None:
        self._spans: deque[TrafficCarried] = deque(maxlen=_KEPT)

    def ingest(self, span: TrafficCarried) -> None:
        """Note a span of a job."""
        self._spans.append(span)

    def beside(self, job: str, link: str, opened_s: float, closed_s: float) -> float:
        """What other jobs carried on a link from `opened_s` to `closed_s` (payload, bit/s), as far as it is known.

        Spans of a job that only partly fall into that time stand for all of it.
        """
        known: dict[str, tuple[float, float]] = {}
        for span in self._spans:
            shared_s = min(closed_s, span.closed_s) - max(opened_s, span.opened_s)
            if span.job != job and shared_s > 0:
                bits, lasted_s = known.get(span.job, (0.0, 0.0))
                known[span.job] = bits + span.bps.get(link, 0.0) * shared_s, lasted_s + shared_s
        return sum(bits / lasted_s for bits, lasted_s in known.values())
