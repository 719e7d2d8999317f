"""The packets that a simulated job's master sends to end doubts, and what comes of them. All NICs are on one switch."""

from collections.abc import Iterable, Sequence
from itertools import permutations

import numpy as np

from c4bench.model.fabric import Train
from c4bench.model.recording import Delivery, ExpiringProbe, LearntPath, TimedFlow
from c4bench.model.window import Window
from tools.sim.model import SimFault, SimJob
from tools.sim.places import nic_of
from tools.sim.world import FaultState

Flow = tuple[str, str, int]

_ANY_PORT = 49152
_PACKETS, _TRAINS, _TRAIN_BYTES = 100, 10, 16 << 10
# A packet's way without a queue.
_DELAY_S = 5e-6


class SimProber:
    """Probes between the NICs of a job during `faults`.

    Of the trains, the share `busy` meets the job's own data, which arrives between their packets.
    """

    def __init__(self, job: SimJob, faults: Sequence[SimFault], busy: float = 0.01) -> None:
        self._job, self._busy = job, busy
        self._world = FaultState(job, faults)
        self._random = np.random.default_rng((job.seed, 1))
        self._ranks = {nic_of(job, rank): rank for rank in range(job.ranks)}
        self._known: set[Flow] = set()

    def all_paths(self) -> tuple[LearntPath, ...]:
        """A path between any two NICs."""
        return self._learnt((source, target, _ANY_PORT) for source, target in permutations(self._ranks, 2))

    def new_paths(self, windows: Iterable[Window]) -> tuple[LearntPath, ...]:
        """The paths of connections that these windows are the first to show."""
        conns = (conn for window in windows for conn in window.conns)
        return self._learnt((conn.source, conn.destination, conn.source_port) for conn in conns)

    def _learnt(self, flows: Iterable[Flow]) -> tuple[LearntPath, ...]:
        new = [flow for flow in dict.fromkeys(flows) if flow not in self._known]
        self._known.update(new)
        return tuple((*flow, (to_switch(flow[0]), from_switch(flow[1]))) for flow in new)

    def expire(self, probes: Iterable[ExpiringProbe], at_s: float) -> tuple[str, ...]:
        """The address that answers each probe, "" for none: the switch, if the NIC can send and receive."""
        return tuple(to_switch(one.source) if self._share(one.source, one.source, at_s) else "" for one in probes)

    def deliver(self, flows: Iterable[Flow], at_s: float) -> tuple[Delivery, ...]:
        """What arrives of numbered packets on flows; nothing is returned if nothing arrives on any."""
        arrived = {flow: _PACKETS * bool(self._share(*flow[:2], at_s)) for flow in flows}
        if not any(arrived.values()):
            return ()
        return tuple(Delivery(*flow, _PACKETS, count, count, 0) for flow, count in arrived.items())

    def time_trains(self, flows: Iterable[Flow], at_s: float) -> tuple[TimedFlow, ...]:
        """How packet trains arrive on flows."""
        return tuple(
            TimedFlow(*flow, self._job.rate_bps, _TRAIN_BYTES, _TRAINS, self._trains(self._share(*flow[:2], at_s)))
            for flow in flows
        )

    def _trains(self, share: float) -> tuple[Train, ...]:
        if not share:
            return ()
        met = self._random.random(_TRAINS) < self._busy
        s_per_byte = np.where(met, 2.0, 1.0) * 8 / (self._job.rate_bps * share)
        return tuple(Train(_DELAY_S, value) for value in s_per_byte.tolist())

    def _share(self, source: str, destination: str, at_s: float) -> float:
        """The share of their rate that one NIC can send to another, or through the switch to itself."""
        peer, posted = np.full(self._job.ranks, self._ranks[destination]), np.full(self._job.ranks, at_s)
        _, sending, receiving = self._world.carried(peer, posted)
        rates = np.broadcast_to(np.minimum(sending, receiving), self._job.ranks)
        return float(rates[self._ranks[source]]) * 8 / self._job.rate_bps


def to_switch(nic: str) -> str:
    """The switch's address on the link from a NIC."""
    return f"{_net(nic)}.254"


def from_switch(nic: str) -> str:
    """A NIC's address on the link from the switch."""
    return f"{_net(nic)}.1"


def _net(nic: str) -> str:
    host, index = nic.removeprefix("h").split("/")
    return f"10.{host}.{index}"
