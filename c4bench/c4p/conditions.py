"""What a plan has to reckon with besides its flows: rates, other traffic, blame, the jobs' shares, bonded ports."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import msgspec
import numpy as np

from c4bench.c4p.arrays import Array
from c4bench.errors import UsageError


class Conditions(msgspec.Struct, frozen=True):
    """The state of the fabric and the policy, by hop, job and bond.

    `capacities` are bit/s by hop, 0 for a dead link; loads are then fractions, without it bit/s. `background_bps` is
    traffic that is not the planner's to move. `avoid` are hops not to be used, such as those that C4D blames. `shares`
    are the jobs' weights, 1 where left out: the flows of a job of share 2 are given the room of twice their demand.
    `bonds` are NICs with several ports, by the name that flows use for them: the ports in order of their planes.
    """

    capacities: Mapping[str, float] | None = None
    background_bps: Mapping[str, float] = MappingProxyType({})
    avoid: frozenset[str] = frozenset()
    shares: Mapping[str, float] = MappingProxyType({})
    bonds: Mapping[str, tuple[str, ...]] = MappingProxyType({})

    def check(self, links: Sequence[str]) -> None:
        """Raise UsageError for a link without a capacity, and for shares, rates and ports that mean nothing."""
        if self.capacities is not None and (missing := [link for link in links if link not in self.capacities]):
            raise UsageError(f"hop {missing[0]} has no capacity; give the rate of every link, 0 for a dead one")
        for what, values in (("capacity", self.capacities or {}), ("background", self.background_bps)):
            if bad := [name for name, value in values.items() if not 0 <= value < float("inf")]:
                raise UsageError(f"hop {min(bad)} has no sensible {what}; give bit/s, zero or more")
        if bad := [job for job, share in self.shares.items() if not 0 < share < float("inf")]:
            raise UsageError(f"job {min(bad)} has no sensible share; give a number above zero")
        if bad := [name for name, ports in self.bonds.items() if not ports]:
            raise UsageError(f"bond {min(bad)} has no ports; name its NICs in order of their planes")

    def weights(self, links: Sequence[str]) -> Array:
        """What turns bit/s on each link into load; infinite where a link is not to be used."""
        rates = self.capacities
        capacity = np.ones(len(links)) if rates is None else np.array([rates[link] for link in links], dtype=float)
        if self.avoid:
            capacity[[index for index, link in enumerate(links) if link in self.avoid]] = 0.0
        weights: Array = np.divide(1.0, capacity, out=np.full_like(capacity, np.inf), where=capacity > 0)
        return weights

    def background(self, links: Sequence[str]) -> Array:
        """Traffic not to be moved, bit/s on each link."""
        return np.array([self.background_bps.get(link, 0.0) for link in links], dtype=float)
