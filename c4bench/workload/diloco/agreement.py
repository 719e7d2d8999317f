"""Which sites' contributions an outer step uses: a pure function of reports that all sites see alike."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import msgspec


class Report(msgspec.Struct, frozen=True, array_like=True):
    """What one worker says of a turn: from which sites it has received, and how new its outer parameters are.

    `versions` has the number of the turn that each fragment's outer parameters come from, -1 for none.
    """

    received: frozenset[int]
    versions: tuple[int, ...]


@dataclass(frozen=True)
class CatchUp:
    """Outer parameters and velocities of `fragments` that site `donor` sends to `site`."""

    site: int
    donor: int
    fragments: tuple[int, ...]


@dataclass(frozen=True)
class Decision:
    """The `sites` whose contributions are summed, in order, none if the turn failed; and who catches up after it."""

    sites: tuple[int, ...]
    catch_ups: tuple[CatchUp, ...]


def decide(reports: Mapping[int, Sequence[Report]], fragment: int, quorum: int) -> Decision:
    """Decide a turn of `fragment` from the reports of each site's workers, by site.

    The contributions used are those of the largest group of sites, all of whose workers have received from each other
    and have the newest outer parameters of the fragment; of groups of equal size, the one of the lowest sites. A group
    smaller than the quorum does nothing: the turn failed. The quorum must be more than half of all sites, so that
    the newest parameters are those of the last turn that did not fail.
    """
    received = {site: frozenset.intersection(*(each.received for each in own)) for site, own in reports.items()}
    old = _outdated({site: own[0].versions for site, own in reports.items()})
    able = sorted(site for site in reports if fragment not in old[site])
    groups = (group for size in range(len(able), 0, -1) for group in combinations(able, size))
    largest = next((group for group in groups if _connected(group, received)), ())
    sites = largest if len(largest) >= quorum else ()
    wanted = {site: old[site] | ({fragment} if sites and site not in sites else set()) for site in sorted(reports)}
    catch_ups = [
        CatchUp(site, donor, tuple(sorted(fragments)))
        for site, fragments in wanted.items()
        for donor in _donors(site, fragments, sites or sorted(reports), old, received)
    ]
    return Decision(sites, tuple(catch_ups))


def _donors(
    site: int,
    fragments: Collection[int],
    candidates: Sequence[int],
    old: Mapping[int, Collection[int]],
    received: Mapping[int, Collection[int]],
) -> list[int]:
    """The lowest site that has these fragments and can send them, if there are any to send."""
    able = (each for each in candidates if each != site and not set(old[each]) & set(fragments))
    return [each for each in able if fragments and _connected((each, site), received)][:1]


def _outdated(versions: Mapping[int, Sequence[int]]) -> dict[int, set[int]]:
    """The fragments of which each site has older parameters than another."""
    newest = [max(column) for column in zip(*versions.values(), strict=True)]
    return {
        site: {part for part, version in enumerate(own) if version < newest[part]} for site, own in versions.items()
    }


def _connected(sites: Collection[int], received: Mapping[int, Collection[int]]) -> bool:
    return all(there in received[here] for here in sites for there in sites if here != there)
