"""Which sites' contributions an outer step uses: a pure function of reports that all sites see alike."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import msgspec


class Report(msgspec.Struct, frozen=True, array_like=True):
    """What one worker says of a turn: from which sites it has received, and which fragments it has out of date."""

    received: frozenset[int]
    stale: frozenset[int]


@dataclass(frozen=True)
class Decision:
    """The `sites` whose contributions are summed, in order; none if the turn failed.

    `donors` has the site that brings each site up to date, by the latter's number.
    """

    sites: tuple[int, ...]
    donors: Mapping[int, int]


def decide(reports: Mapping[int, Sequence[Report]], fragment: int, quorum: int) -> Decision:
    """Decide a turn of `fragment` from the reports of each site's workers, by site.

    The contributions used are those of the largest group of sites, all of whose workers have received from each other
    and whose outer parameters of the fragment are up to date; of groups of equal size, the one of the lowest sites. A
    group smaller than the quorum does nothing: the turn failed.
    """
    received = {site: frozenset.intersection(*(each.received for each in own)) for site, own in reports.items()}
    stale = {site: frozenset.union(*(each.stale for each in own)) for site, own in reports.items()}
    able = sorted(site for site in reports if fragment not in stale[site])
    groups = (group for size in range(len(able), 0, -1) for group in combinations(able, size))
    largest = next((group for group in groups if _connected(group, received)), ())
    sites = largest if len(largest) >= quorum else ()
    donors: dict[int, int] = {}
    for site in sorted(reports):
        able_donors = (donor for donor in sites or sorted(reports) if not stale[donor] & stale[site])
        donor = next((donor for donor in able_donors if donor != site and _connected((donor, site), received)), None)
        if stale[site] and donor is not None:
            donors[site] = donor
    return Decision(sites, donors)


def _connected(sites: Collection[int], received: Mapping[int, Collection[int]]) -> bool:
    return all(there in received[here] for here in sites for there in sites if here != there)
