"""Pause storms: a NIC sends pause frames without end, so that the switch's port to it stands still.

What waits for that port fills the switch, which pauses others in turn (IEEE 802.1Qbb): transfers become slow or stop
that never cross the port. Only the NIC that pauses, rather than being paused, is at fault. Drivers that count frames,
but not for how long these have stopped the port, show no storm: a frame may stop it for any time.

A port that stands still now and then makes transfers to its own NIC slower by that: one that takes t times as long has
been stopped for 1 - 1/t of the time. NICs that send there are paused in turn, and what they send elsewhere waits too.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

from c4bench.c4d.confidence import confidence
from c4bench.c4d.diagnosis import Alarmed, Finding
from c4bench.c4d.observe.clocks import HostClocks
from c4bench.c4d.observe.job_view import JobView
from c4bench.model.diagnosis import Cause, Component

# A port stands still that was stopped for more of the time than it could send.
_STANDS_STILL = 0.5
# NICs hardly pause in health, and one that waits for this share of the time sends slowly by that.
_NOTABLE = 0.1
# Pauses are not spread evenly over transfers: this part of the share that these ask for is enough.
_OF_SHARE = 0.8
# What a storm imitates.
_IMITATED = frozenset({Cause.TRANSFER_SLOW, Cause.CONNECTION_STALLED})


class _Storm(NamedTuple):
    """A NIC, and for which share of the time it has stopped the switch's port."""

    nic: str
    share: float


class PauseStorms:
    """The pause storms of one job's NICs."""

    def __init__(self, view: JobView, clocks: HostClocks) -> None:
        self._view, self._clocks = view, clocks
        self._named_s: dict[str, float] = {}

    def explain(self, alarmed: Iterable[Alarmed]) -> list[Alarmed]:
        """The findings, with each NIC that storms, once, in place of all that its storm imitates.

        Its alarm is that of the first finding that it replaces.
        """
        kept: list[Alarmed] = []
        named: set[str] = set()
        for finding, alarmed_s in alarmed:
            storms = self._behind(finding) if finding.cause in _IMITATED else []
            instead = [_named(finding, storm) for storm in storms if storm.nic not in named] if storms else [finding]
            kept += [(one, alarmed_s) for one in instead]
            named.update(storm.nic for storm in storms)
        return kept

    def new(self, alarmed: Iterable[Alarmed], now_s: float) -> list[Alarmed]:
        """The findings without storms that go on since they were found before."""
        fresh = []
        for finding, alarmed_s in alarmed:
            if finding.cause is Cause.PAUSE_STORM:
                nic = finding.component.name
                before_s, self._named_s[nic] = self._named_s.get(nic), now_s
                goes_on = min(_STANDS_STILL, _OF_SHARE * finding.figures["paused_share"])
                if before_s is not None and self._share(nic, before_s, "pause_sent_us") > goes_on:
                    continue
            fresh.append((finding, alarmed_s))
        return fresh

    def _behind(self, finding: Finding) -> list[_Storm]:
        """The job's NICs that storm since a finding's onset, or whose pauses are why transfers are slow."""
        own = {nic for suspect in finding.suspects for nic in suspect.name.split(">")}
        counting = sorted(nic for nic in self._view.users() if nic in self._view.devices)
        shares = [_Storm(nic, self._share(nic, finding.onset_s, "pause_sent_us")) for nic in counting]
        waits = any(
            self._share(nic, finding.onset_s, "pause_received_us") > _NOTABLE for nic in own.intersection(counting)
        )
        least, elsewhere = _least_share(finding), _NOTABLE if waits else _STANDS_STILL
        return [storm for storm in shares if storm.share > (least if storm.nic in own else elsewhere)]

    def _share(self, nic: str, since_s: float, counter: str) -> float:
        """For which share of the time since then a NIC has stopped the switch's port, or was stopped by it.

        0 if it does not count that.
        """
        device = self._view.devices[nic]
        return device.pace(counter, since_s - self._clocks.offset_s(device.host)) / 1e6


def _least_share(finding: Finding) -> float:
    """For which share of the time a port has stood still at least, if that is why a transfer is slow."""
    times = finding.figures.get("times_as_long", math.inf)
    return min(_STANDS_STILL, _OF_SHARE * (1 - 1 / times)) if times > 1 else _STANDS_STILL


def _named(finding: Finding, storm: _Storm) -> Finding:
    return Finding(
        finding.syndrome,
        Cause.PAUSE_STORM,
        Component("nic", storm.nic),
        finding.onset_s,
        confidence(),
        (
            f"its pause frames have stopped the switch's port to it for {storm.share:.0%} of the time",
            f"without them this would be {finding.component}: {finding.cause}",
        ),
        f"a pause counter of {storm.nic} that stands still",
        {**finding.figures, "paused_share": storm.share},
        operations=finding.operations,
    )
