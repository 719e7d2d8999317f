"""The conditions of a plan: link capacities, other traffic, links to avoid, jobs' shares, bonded ports and planes."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import msgspec
import numpy as np
import numpy.typing as npt

from c4bench.errors import UsageError

Array = npt.NDArray[np.float64]
# Indices, such as of links, or of the slots of flows.
IndexArray = npt.NDArray[np.intp]


class Conditions(msgspec.Struct, frozen=True):
    """The state of the fabric and the policy, by hop, job and bond.

    `capacities` are bit/s by hop, 0 for a dead link; loads are then fractions of them, without capacities bit/s.
    `background_bps` is traffic that the planner cannot move. `avoid` are hops that must not be used, such as those that
    C4D blames. `shares` are the jobs' weights, by default 1: the flows of a job of share 2 count twice their
    demand. `bonds` are the ports of NICs with several, in order of their planes, by the name that flows use; `planes`
    are those of links to and from NICs, by hop, where a port has no name of its own.
    """

    capacities: Mapping[str, float] | None = None
    background_bps: Mapping[str, float] = MappingProxyType({})
    avoid: frozenset[str] = frozenset()
    shares: Mapping[str, float] = MappingProxyType({})
    bonds: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    planes: Mapping[str, int] = MappingProxyType({})

    def crosses(self, first: str, last: str) -> bool:
        """Whether a path that begins and ends with these hops leads from one plane to another."""
        source, destination = self.planes.get(first), self.planes.get(last)
        return source is not None and destination is not None and source != destination

    def check(self, links: Sequence[str]) -> None:
        """Raise UsageError for a link without a capacity, and for invalid rates, shares and bonds."""
        if self.capacities is not None and (missing := [link for link in links if link not in self.capacities]):
            raise UsageError(f"hop {missing[0]} has no capacity; give the rate of every link, 0 for a dead one")
        for what, values in (("capacity", self.capacities or {}), ("background", self.background_bps)):
            if bad := [name for name, value in values.items() if not 0 <= value < float("inf")]:
                raise UsageError(f"hop {min(bad)} has no valid {what}; give bit/s, zero or more")
        if bad := [job for job, share in self.shares.items() if not 0 < share < float("inf")]:
            raise UsageError(f"job {min(bad)} has no valid share; give a number above zero")
        if bad := [name for name, ports in self.bonds.items() if not ports]:
            raise UsageError(f"bond {min(bad)} has no ports; name its NICs in order of their planes")

    def weights(self, links: Sequence[str]) -> Array:
        """The factor from bit/s to load of each link; infinite for a link that must not be used."""
        rates = self.capacities
        capacity = np.ones(len(links)) if rates is None else np.array([rates[link] for link in links], dtype=float)
        if self.avoid:
            capacity[[index for index, link in enumerate(links) if link in self.avoid]] = 0.0
        weights: Array = np.divide(1.0, capacity, out=np.full_like(capacity, np.inf), where=capacity > 0)
        return weights

    def background(self, links: Sequence[str]) -> Array:
        """Traffic that the planner cannot move, bit/s on each link."""
        return np.array([self.background_bps.get(link, 0.0) for link in links], dtype=float)
