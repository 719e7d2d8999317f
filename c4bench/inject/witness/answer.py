"""Witnesses of links that also check, after the revert, that the peer answers again.

A link is up before packets pass: a switch may delay forwarding on a port, and after a failed ARP request the next one
comes a second later. A user of the link would take that delay for another fault.
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
# A real link trains for seconds, and with spanning tree a port forwards only after 30 s (IEEE 802.1D).
_RETURN_TIMEOUT_S = 40.0


class PeerReachable:
    """Adds to another witness `answers`: the number of cables over which the peer answers an echo request.

    The target has recovered when as many answer as before the fault. A cable without a peer, or that cannot be probed,
    is left to the other witness. Waits at most `back_s`.
    """

    def __init__(self, witness: Witness, cables: Sequence[PeerProbe], back_s: float = _RETURN_TIMEOUT_S) -> None:
        self._witness, self._cables, self._back_s = witness, cables, back_s
        self._healthy: list[PeerProbe] = []

    def before(self) -> Values:
        """The other witness's values, and how many peers answer."""
        self._healthy = [asks for asks in self._cables if asks()]
        return self._witness.before() | {"answers": float(len(self._healthy))}

    def during(self, onset_s: float) -> Evidence:
        """The other witness's evidence."""
        return self._witness.during(onset_s)

    def after(self) -> Aftermath:
        """The other witness's values, once all peers have answered."""
        wait_until(self._all_answer, self._back_s)
        values, recovered = self._witness.after()
        answers = sum(asks() for asks in self._healthy)
        return Aftermath(values | {"answers": float(answers)}, recovered and answers == len(self._healthy))

    def _all_answer(self) -> bool:
        return all(asks() for asks in self._healthy)


@witness("link_state")
def link_state(request: FaultRequest) -> PeerReachable:
    """Witness of a link's state."""
    return PeerReachable(link.LinkState(request), _peer_probes([request.interface]))


@witness("link_flaps")
def link_flaps(request: FaultRequest) -> PeerReachable:
    """Witness of a flapping link."""
    return PeerReachable(link.LinkFlaps(request), _peer_probes([request.interface]))


@witness("switch_state")
def switch_state(request: FaultRequest) -> PeerReachable:
    """Witness of a switch's ports."""
    return PeerReachable(link.SwitchState(request), _peer_probes(switches.ports(request)))


@witness("gid_table")
def gid_table(request: FaultRequest) -> PeerReachable:
    """Witness of a NIC's GIDs."""
    return PeerReachable(figure.gid_table(request), _peer_probes([request.interface]))


def _peer_probes(ends: Iterable[Interface]) -> list[PeerProbe]:
    probes = []
    for end in ends:
        with contextlib.suppress(UnhealthyError):  # no address, or no known peer
            probes.append(_peer_probe(Prober(interfaces.examine(end))))
    return probes


def _peer_probe(prober: Prober) -> PeerProbe:
    def probe() -> bool:
        try:
            return not prober.train(1).lost
        except OSError:  # the address went with the link
            return False

    return probe
