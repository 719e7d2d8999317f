"""Which components the NICs' counts of lost packets speak against: a NIC counts for all of its paths together."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from c4bench.attribution.localise import Blame, Cell, Links
from c4bench.c4d.ingest.nic_counters import Counts
from c4bench.model.diagnosis import Component

# One NIC counts nearly all, and several at the other end count something: no path between two NICs loses that.
_NEARLY_ALL = 0.75
_PARTNERS = 3


def singled_out(counts: Sequence[Mapping[str, Counts]], in_use: Collection[Cell], links: Links) -> Blame | None:
    """The side of a NIC that alone sends packets again to several others, or misses packets of several; None if none.

    Where delays vary a lot, no single path shows that losses make it slow. `counts` are those of the NICs in each span.
    A link that some path of each of these pairs crosses is an alternative.
    """
    again, missed = Counter[str](), Counter[str]()
    for span in counts:
        for nic, count in span.items():
            again[nic] += count.retransmits
            # Two ranks of a host may share a NIC, which then misses what it has sent to itself.
            missed[nic] += max(0, count.out_of_sequence - count.retransmits)
    for side, near, far, (own, other) in (("tx", again, missed, (0, 1)), ("rx", missed, again, (1, 0))):
        nic, most = max(near.items(), key=lambda one: one[1], default=("", 0))
        cells = [cell for cell in in_use if cell[own] == nic != cell[other] and far[cell[other]]]
        crossed: dict[str, set[str]] = {}
        for cell in cells:
            crossed.setdefault(cell[other], set()).update(links.get(cell, ()))
        if most >= _NEARLY_ALL * near.total() and len(crossed) >= _PARTNERS:
            others = (Component("link", hop) for hop in sorted(set.intersection(*crossed.values())))
            return Blame(Component("nic", nic, side), tuple(sorted(cells)), 1.0, tuple(others))
    return None


def supported(blames: list[Blame], lossy: Collection[Cell]) -> list[Blame]:
    """Those of the blames that the counts support."""
    return _beside(_explaining(blames, lossy), lossy)


def _explaining(blames: list[Blame], lossy: Collection[Cell]) -> list[Blame]:
    """Drop single paths, unless they end wherever packets arrived out of sequence: NICs count for all paths."""
    ends = _receivers(lossy)
    return [b for b in blames if b.component.kind != "path" or b.alternatives or ends == _receivers(b.cells)]


def _beside(blames: list[Blame], lossy: Collection[Cell]) -> list[Blame]:
    """Drop NICs whose cells are all between partners of the NIC that loses most.

    NICs count for all of their paths together: what was lost at that NIC is counted at its partners too.
    """
    nics = [blame for blame in blames if blame.component.kind == "nic"]
    if not nics:
        return blames
    worst = max(nics, key=lambda blame: len(blame.cells))
    name = worst.component.name
    partners = {nic for cell in lossy if name in cell[:2] for nic in cell[:2]}
    return [
        blame for blame in blames if blame not in nics or blame is worst or not partners.issuperset(_ends(blame.cells))
    ]


def between_partners(slow: Collection[Cell], missed: Collection[Cell]) -> set[Cell]:
    """The slow cells between partners of a NIC: what it misses, as it may if it is very slow, both count as well.

    NICs count for all of their paths together. That NIC has more slow cells than any other, and has them both ways.
    """
    touched = Counter(nic for cell in slow for nic in set(cell[:2]))
    if not touched:
        return set()
    worst = max(sorted(touched), key=touched.__getitem__)
    sends_to = {cell[1] for cell in missed if cell[0] == worst}
    hears_from = {cell[0] for cell in missed if cell[1] == worst}
    return {cell for cell in slow if worst not in cell[:2] and cell[0] in hears_from and cell[1] in sends_to}


def with_cable(blame: Blame, links: Links, in_use: Collection[Cell], well: Collection[str]) -> Blame:
    """Add the links that explain a NIC's losses as well: those by which it sends, and those by which it receives.

    The two directions of a cable lose together, as both sides of a NIC do. Links in `well` lose nothing, and those that
    no other NIC of the cells `in_use` crosses are the NIC's own.
    """
    nic = blame.component
    if nic.kind != "nic" or nic.side:
        return blame
    shared = {hop for cell in in_use if nic.name not in cell[:2] for hop in links.get(cell, ())} - set(well)
    sides = [[cell for cell in blame.cells if cell[end] == nic.name] for end in (0, 1)]
    common = [set.intersection(*(set(links.get(cell, ())) for cell in cells)) & shared for cells in sides if cells]
    if len(common) < len(sides) or not all(common):
        return blame
    others = (Component("link", hop) for hops in common for hop in sorted(hops))
    return msgspec.structs.replace(blame, alternatives=tuple(dict.fromkeys((*blame.alternatives, *others))))


def _receivers(cells: Iterable[Cell]) -> set[str]:
    return {cell[1] for cell in cells}


def _ends(cells: Iterable[Cell]) -> set[str]:
    return {nic for cell in cells for nic in cell[:2]}
