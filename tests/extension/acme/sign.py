"""A sign: flows whose sender was told to slow down (congestion notification packets of RoCE v2)."""

from collections.abc import Iterable

from c4bench import JobSpan, Observation, crossed


class Throttled:
    """A flow fared badly in a span in which its sender got such packets."""

    def __init__(self) -> None:
        self._before: dict[str, int] = {}

    def __call__(self, span: JobSpan) -> Iterable[Observation]:
        """An observation of each flow that was measured."""
        now = {name: nic.cnp_received or 0 for name, nic in span.nics.items()}
        throttled = {name for name, count in now.items() if count > self._before.get(name, count)}
        self._before = now
        for flow in span.costs:
            yield Observation(flow, crossed(flow, span.links.get(flow, ())), float(flow[0] in throttled))
