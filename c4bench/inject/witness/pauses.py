"""The witness of paused traffic: packets of the data's class are late or lost, and those of another class are not.

What comes to a NIC is paused, in the switch. Probes of the data's class come to it from another NIC of its host, over
the fabric, as the answers to them are of class 0. To the only NIC of a host come the kernel's echo replies, which have
the class of the request: they wait in the same queue of the switch.
"""

import statistics
from typing import NamedTuple

from c4bench.errors import UnhealthyError
from c4bench.inject import interfaces
from c4bench.inject.registry import witness
from c4bench.inject.witness.base import Aftermath, Compared
from c4bench.inject.witness.echo import CONNECTION_MANAGER, Echoes, Prober, Probes, RdmaProber
from c4bench.model.fabric import Nic
from c4bench.model.fault import FaultRequest

_PROBES = 100
# Of the pauses' share of the time, what is late by so much of a mean pause at least; twice as much is on average.
_LATE_SHARE, _LATE_BY = 1 / 3, 1 / 4
_PRIORITY_SHIFT = 5
_AGAIN = 4


class _Classes(NamedTuple):
    """Trains of the data's traffic class, and of class 0."""

    data: Echoes
    other: Echoes


class _Paused(Compared[_Classes]):
    """Measures again after the fault: a switch whose watchdog drops what was paused does so for a while longer."""

    def after(self) -> Aftermath:
        """The first measurement that shows the target recovered, or the last one."""
        found = super().after()
        for _ in range(_AGAIN):
            if found.recovered:
                break
            found = super().after()
        return found


@witness("pauses")
def pauses(request: FaultRequest) -> Compared[_Classes]:
    """`late` and `late_other`: shares of probes that are lost, or later than before by a quarter of a mean pause.

    Seen, from the first late one on, when a third of the requested share is, and of another class less. Raises
    UnhealthyError where nothing can be probed, or the data has no class of its own.
    """
    nic = request.interface
    if not isinstance(nic, Nic) or not nic.traffic_class >> _PRIORITY_SHIFT:
        raise UnhealthyError(f"the data of {request.where} is of priority 0, as all else; give the NIC a dscp")
    prober, other = (_probes(nic, request, of_class) for of_class in (nic.traffic_class, 0))
    by_s = _LATE_BY * (request.number("shortest_s") + request.number("longest_s")) / 2
    least = _LATE_SHARE * request.number("duty")
    usual_s: list[float] = []

    def measure() -> _Classes:
        gap_s = request.witness_s / _PROBES
        found = _Classes(*(probes.train(_PROBES, gap_s=gap_s) for probes in (prober, other)))
        usual_s.append(_round_trip_s(found.data))
        return found

    def late(train: Echoes) -> list[float]:
        """When the late probes of a train were sent."""
        in_time = {reply.number for reply in train.replies if reply.arrived_s - reply.sent_s < usual_s[0] + by_s}
        return [sent_s for number, sent_s in enumerate(train.sent_s) if number not in in_time]

    def share(train: Echoes) -> float:
        return len(late(train)) / _PROBES

    def seen(before: _Classes, during: _Classes) -> float | None:
        grown = share(during.data) - share(before.data)
        others = share(during.other) - share(before.other)
        return late(during.data)[0] if grown >= least > others else None

    return _Paused(
        measure,
        lambda found: {"late": share(found.data), "late_other": share(found.other)},
        seen,
        lambda before, after: share(after.data) < share(before.data) + least,
        prober.plane,
    )


def _probes(nic: Nic, request: FaultRequest, traffic_class: int) -> Probes:
    """Probes by which packets of the class come to the NIC."""
    senders = [one for one in request.nics if one != nic and one.device]
    if senders and nic.device and CONNECTION_MANAGER.exists():
        return RdmaProber(min(senders, key=lambda one: one.plane != nic.plane), nic, traffic_class)
    peer = next((one.address for one in request.peers if one.plane == nic.plane), "")
    if not peer:
        raise UnhealthyError(f"{nic.name} cannot be probed: there is no other NIC in its plane")
    return Prober(interfaces.examine(nic), peer, traffic_class)


def _round_trip_s(echoes: Echoes) -> float:
    """The median of those that were answered; 0 if none was."""
    return statistics.median([reply.arrived_s - reply.sent_s for reply in echoes.replies] or [0.0])
