"""Witnesses of what has a cable, with one word more: whether somebody at the other end answers again.

A link is up before packets pass: a switch may hold its port back a while, and resolves addresses anew, which after a
question in vain takes a second. Who uses the target as soon as its link is up would take that for another fault.
"""

import contextlib
from collections.abc import Callable, Iterable, Sequence

from c4bench.errors import UnhealthyError
from c4bench.inject import interfaces, switches
from c4bench.inject.registry import witness
from c4bench.inject.witness import figure, link
from c4bench.inject.witness.base import Aftermath, Evidence, Values, Witness, wait_until
from c4bench.inject.witness.probe import Prober
from c4bench.model.fault import FaultRequest, Interface

PeerProbe = Callable[[], bool]
# A real link trains for seconds, and a port that looks for loops first forwards nothing for thirty (IEEE 802.1D).
_RETURN_TIMEOUT_S = 40.0


class PeerReachable:
    """Sees what another witness sees; `answers`: over how many of the cables somebody does.

    The target is itself again when as many answer as did in health: so a cable that nobody answers over, or that cannot
    be asked over, is judged by the other witness alone. Waits for them for `back_s` at most.
    """

    def __init__(self, witness: Witness, cables: Sequence[PeerProbe], back_s: float = _RETURN_TIMEOUT_S) -> None:
        self._witness, self._cables, self._back_s = witness, cables, back_s
        self._healthy: list[PeerProbe] = []

    def before(self) -> Values:
        """In health."""
        self._healthy = [asks for asks in self._cables if asks()]
        return self._witness.before() | {"answers": float(len(self._healthy))}

    def during(self, onset_s: float) -> Evidence:
        """The other witness's word."""
        return self._witness.during(onset_s)

    def after(self) -> Aftermath:
        """The other witness's word, once all have answered."""
        wait_until(self._all_answer, self._back_s)
        values, recovered = self._witness.after()
        answers = sum(asks() for asks in self._healthy)
        return Aftermath(values | {"answers": float(answers)}, recovered and answers == len(self._healthy))

    def _all_answer(self) -> bool:
        return all(asks() for asks in self._healthy)


@witness("link_state")
def link_state(request: FaultRequest) -> PeerReachable:
    """The state of a link."""
    return PeerReachable(link.LinkState(request), _peer_probes([request.interface]))


@witness("link_flaps")
def link_flaps(request: FaultRequest) -> PeerReachable:
    """How a link comes and goes."""
    return PeerReachable(link.LinkFlaps(request), _peer_probes([request.interface]))


@witness("switch_state")
def switch_state(request: FaultRequest) -> PeerReachable:
    """How many of a switch's ports are up."""
    return PeerReachable(link.SwitchState(request), _peer_probes(switches.ports(request)))


@witness("gid_table")
def gid_table(request: FaultRequest) -> PeerReachable:
    """A NIC's GIDs."""
    return PeerReachable(figure.gid_table(request), _peer_probes([request.interface]))


def _peer_probes(ends: Iterable[Interface]) -> list[PeerProbe]:
    probes = []
    for end in ends:
        with contextlib.suppress(UnhealthyError):  # no address, or nobody known at the other end
            probes.append(_peer_probe(Prober(interfaces.examine(end))))
    return probes


def _peer_probe(prober: Prober) -> PeerProbe:
    def probe() -> bool:
        try:
            return not prober.train(1).lost
        except OSError:  # its own address has gone with the link
            return False

    return probe
