"""Signs that other distributions add (entry points `c4bench.signs`): what they observe is weighed and asked as ours is.

A sign is made for each job and sees its spans in order. In each it says which flows fared badly, and what they crossed.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from c4bench import extensions
from c4bench.attribution.weigh import Cell, Links, Observation, Posterior, likeliest
from c4bench.c4d.confidence import confidence
from c4bench.c4d.diagnosis import Finding
from c4bench.c4d.thresholds import NAME_SPANS
from c4bench.errors import RepeatedFailures
from c4bench.foreign_text import one_line
from c4bench.model.diagnosis import Cause, Component, Syndrome
from c4bench.model.telemetry import NicRecord

_logger = logging.getLogger(__name__)


class JobSpan(NamedTuple):
    """What a job's connections and NICs have shown in one span of its delay matrix. Times are the master's (s).

    `costs` are seconds of NIC time per byte, by source NIC, destination NIC and source port; `links` the links that
    each of these crosses, as far as paths are known; `nics` the newest record of each NIC, with cumulative counters.
    """

    opened_s: float
    closed_s: float
    costs: Mapping[Cell, float]
    links: Links
    nics: Mapping[str, NicRecord]


Sign = Callable[[JobSpan], Iterable[Observation]]
SIGNS: extensions.Registry[Callable[[], Sign]] = extensions.Registry(
    extensions.SIGNS, "a class or function () that makes a sign", dict, extensions.takes(0)
)


class _Run(NamedTuple):
    """A component that a sign accuses, in how many spans in a row, and since when (s)."""

    component: Component
    spans: int
    onset_s: float


class AddedSigns:
    """The signs of one job that others add. A sign that fails says nothing in that span, and the failure is reported.

    A component is found once a sign has accused it in as many spans in a row as ours need.
    """

    def __init__(self, signs: Mapping[str, Callable[[], Sign]] = SIGNS) -> None:
        self._signs = {name: make() for name, make in signs.items()}
        self._runs: dict[str, _Run] = {}
        self._failures = RepeatedFailures(_report)

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._signs)

    def find(self, span: JobSpan) -> list[Finding]:
        """What each sign has accused for long enough, the same in span after span."""
        found = ((name, self._weigh(name, sign, span)) for name, sign in self._signs.items())
        return [
            _finding(name, posterior, self._runs[name].onset_s)
            for name, posterior in found
            if posterior and self._runs[name].spans >= NAME_SPANS
        ]

    def _weigh(self, name: str, sign: Sign, span: JobSpan) -> Posterior | None:
        """What is to blame by one sign in this span; its run is counted on, or ends."""
        try:
            posterior = likeliest(sign(span))
        except Exception as failure:
            self._failures.note(f"sign {name!r} failed", failure)
            posterior = None
        last = self._runs.pop(name, None)
        if posterior:
            same = last if last and last.component in posterior.suspects else None
            since = same or _Run(posterior.suspects[0], 0, span.opened_s)
            self._runs[name] = since._replace(spans=since.spans + 1)
        return posterior


def _report(message: str, failure: Exception) -> None:  # noqa: ARG001  (as `RepeatedFailures` calls it)
    _logger.warning("%s; correct its package, or leave it out", one_line(message))


def _finding(name: str, posterior: Posterior, onset_s: float) -> Finding:
    first, *others = posterior.rows
    return Finding(
        Syndrome.COMMUNICATION_SLOW,
        Cause.TRANSFER_SLOW,
        first.component,
        onset_s,
        confidence(share=posterior.share),
        (f"{name}: {first.bad:g} of {first.of:g} cases across it fared badly",),
        f"flows that cross {first.component} and that {name} finds well",
        {"spans": float(NAME_SPANS)},
        tuple(row.component for row in others),
        posterior=posterior,
    )
