"""Runs of a point-to-point benchmark between many NICs: which NIC is slow, or cannot be reached, as C4D would name it.

A rate is compared with the median of runs of the same test and size, so that what is slow everywhere is not seen.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median, median_high, median_low
from typing import NamedTuple

from c4bench.attribution.weigh import Blame, Cell, attribute_cells
from c4bench.c4d.confidence import confidence
from c4bench.evidence.benchmarks.ends import Ends, ends_of
from c4bench.evidence.judging.crossings import Fabric
from c4bench.model import advice
from c4bench.model.diagnosis import Cause, Component, Diagnosis, Syndrome
from c4bench.model.evidence import BenchmarkRun, EvidenceVerdict

# A rate below this share of the median is slow, unless rates are scattered: beyond so many median deviations.
_SLOW, _SCATTER = 0.85, 6.0
_FEWEST = 4  # measured pairs
_UNCOUNTED = 0.8  # no campaign has counted such findings
_NOBODY = 0.5
_ONCE = 0.5  # one pair may have been slow for a moment
_SHOWN = 6


class Compared(NamedTuple):
    """Pairs of one test and size: `normal` is the median in `unit`, `excess` how far each is beyond it (log ratio)."""

    test: str
    size_bytes: int
    unit: str
    normal: float
    excess: Mapping[Cell, float]
    above: float

    @property
    def name(self) -> str:
        """The test, with the size where there is one."""
        return f"{self.test}, {self.size_bytes} B" if self.size_bytes else self.test

    def summary(self) -> str:
        """The slowest, the middle and the fastest pair."""
        ratios = [math.exp(-value) for value in self.excess.values()]
        slowest, fastest = self.normal * min(ratios), self.normal * max(ratios)
        if self.unit == "us":
            slowest, fastest = self.normal / min(ratios), self.normal / max(ratios)
        return (
            f"{len(ratios)} pairs of {self.name}: slowest {slowest:.4g}, "
            f"median {self.normal:.4g}, fastest {fastest:.4g} {self.unit}"
        )


class PairwiseRuns:
    """All runs whose ends are known: `compared` by test, and the pairs that could not connect."""

    def __init__(self, runs: Sequence[BenchmarkRun], fabric: Fabric | None = None) -> None:
        """`fabric` shows which links pairs cross."""
        self._fabric = fabric
        between = [run for run in runs if len(run.hosts) == 2 or (not run.hosts and run.ranks == 0)]
        ends = ends_of(between)
        self.known = {at: (between[at], one) for at, one in ends.items()}
        self._unplaced = [run for at, run in enumerate(between) if at not in ends]
        self.failed = {cell for run, one in self.known.values() if run.errors and not run.rows for cell in _cells(one)}
        self.compared = tuple(self._compared())

    def _compared(self) -> Iterable[Compared]:
        tests = dict.fromkeys((run.tool, run.kind) for run, _ in self.known.values())
        for tool, kind in tests:
            runs = [
                (run, ends) for run, ends in self.known.values() if (run.tool, run.kind) == (tool, kind) and run.rows
            ]
            sizes = Counter(row.size_bytes for run, _ in runs for row in run.rows)
            if not sizes:
                continue
            most = max(sizes.values())
            size_bytes = max(size for size, count in sizes.items() if count == most)
            found = _compare(f"{tool} {kind}", size_bytes, runs)
            if found:
                yield found

    def unknown(self) -> list[str]:
        """What is not known of runs between pairs, if there is more than one run."""
        found = []
        if self._unplaced and len(self._unplaced) + len(self.known) > 1:
            files = dict.fromkeys(run.source for run in self._unplaced)
            found.append(
                f"between which NICs {len(self._unplaced)} benchmarks ran, such as {next(iter(files))}: name files "
                "SENDER__RECEIVER"
            )
        if self.compared:
            found.append("whether all pairs together are slow: rates are compared with each other")
        return found

    def summaries(self) -> list[str]:
        """How fast the pairs of each test are."""
        return [one.summary() for one in self.compared]

    def verdicts(self, job: str) -> list[EvidenceVerdict]:
        """Each NIC, or pair of NICs, that is to blame."""
        found = []
        for compared in self.compared:
            links = self._fabric.crossed(compared.excess) if self._fabric else {}
            blames = attribute_cells(compared.excess, links, above=compared.above)
            blamed = {cell for blame in blames for cell in blame.cells}
            others = (value for cell, value in compared.excess.items() if cell not in blamed)
            least = math.exp(-max(others, default=0.0))
            found += [self._slow(job, compared, blame, least) for blame in blames]
            found += _unexplained(job, compared, blames)
        dead = {cell: float(cell in self.failed) for one in self.compared for cell in one.excess} | dict.fromkeys(
            self.failed, 1.0
        )
        if self.failed and len(dead) >= _FEWEST:
            links = self._fabric.crossed(dead) if self._fabric else {}
            found += [self._unreached(job, blame) for blame in attribute_cells(dead, links, above=0.5)]
        return found

    def _slow(self, job: str, compared: Compared, blame: Blame, least: float) -> EvidenceVerdict:
        """A verdict; the slowest pair that nobody is blamed for is `least` as fast as the median."""
        share = math.exp(-blame.excess)
        words = (
            f"{compared.name}: {len(blame.cells)} of {len(compared.excess)} pairs are slow, "
            f"{share:.0%} as fast as the median of {compared.normal:.4g} {compared.unit}; "
            f"the slowest that is not to blame is {least:.0%} as fast",
            f"slow: {_listed(blame.cells)}",
        )
        return _verdict(job, Syndrome.COMMUNICATION_SLOW, Cause.TRANSFER_SLOW, blame, words)

    def _unreached(self, job: str, blame: Blame) -> EvidenceVerdict:
        words = (f"no connection: {_listed(blame.cells)}",)
        return _verdict(job, Syndrome.COMMUNICATION_HANG, Cause.CONNECTION_LOST, blame, words)


def _cells(ends: Ends) -> list[Cell]:
    forth, back = (ends.source, ends.destination), (ends.destination, ends.source)
    return [forth, back] if ends.both else [forth]


def _compare(test: str, size_bytes: int, runs: Iterable[tuple[BenchmarkRun, Ends]]) -> Compared | None:
    """The pairs that have a row of that size; None if there are too few to say what is normal."""
    values: dict[Cell, list[float]] = {}
    rates = True
    for run, ends in runs:
        for row in run.rows:
            rates = row.bandwidth_bps >= 0
            value = row.bandwidth_bps if rates else max(row.typical_s, row.mean_s)
            if row.size_bytes == size_bytes and value > 0:
                for cell in _cells(ends):
                    values.setdefault(cell, []).append(value)
    means = {cell: median(measured) for cell, measured in values.items()}
    if len(means) < _FEWEST:
        return None
    low, high = median_low(means.values()), median_high(means.values())
    # Of four hosts half of the pairs are those of one: the middle is then between two values, and the better counts.
    normal = median(means.values()) if low > _SLOW * high else high if rates else low
    excess = {cell: math.log(normal / value if rates else value / normal) for cell, value in means.items()}
    scatter = median_low(abs(value) for value in excess.values())
    above = max(-math.log(_SLOW), _SCATTER * scatter)
    return Compared(
        test, size_bytes, "Gbit/s" if rates else "us", normal / 1e9 if rates else normal * 1e6, excess, above
    )


def _unexplained(job: str, compared: Compared, blames: Iterable[Blame]) -> Iterator[EvidenceVerdict]:
    """That pairs are slow which no single NIC, and no pair alone, accounts for: the network between them may be."""
    explained = {cell for blame in blames for cell in blame.cells}
    slow = sorted(cell for cell, value in compared.excess.items() if value > compared.above and cell not in explained)
    if len(slow) < _FEWEST:
        return
    share = math.exp(-median(compared.excess[cell] for cell in slow))
    diagnosis = Diagnosis(
        job, Syndrome.COMMUNICATION_SLOW, Component("job", job), 0.0, 0.0, 0.0, _NOBODY,
        (f"{compared.name}: {len(slow)} of {len(compared.excess)} pairs are slow, "
         f"{share:.0%} as fast as the median of {compared.normal:.4g} {compared.unit}, and no NIC has most of them",
         f"slow: {_listed(slow)}"),
        "the same pairs at the others' rate", Cause.TRANSFER_SLOW, {"slow": float(len(slow))},
    )  # fmt: skip
    yield EvidenceVerdict(
        diagnosis,
        (),
        sure=False,
        unadvised=advice.why_not(diagnosis),
        told_by="which links these pairs share: --cabling FILE says that",
    )


def _listed(cells: Sequence[Cell]) -> str:
    shown = ", ".join(f"{cell[0]} to {cell[1]}" for cell in cells[:_SHOWN])
    return shown + (f" and {len(cells) - _SHOWN} more" if len(cells) > _SHOWN else "")


def _verdict(job: str, syndrome: Syndrome, cause: Cause, blame: Blame, words: tuple[str, ...]) -> EvidenceVerdict:
    most = _UNCOUNTED if len(blame.cells) > 1 else _ONCE
    likely = min(most, confidence(len(blame.alternatives), blame.posterior.share))
    same = ("a NIC, its cable and the switch port at its end look alike here",) if blame.component.kind == "nic" else ()
    diagnosis = Diagnosis(
        job, syndrome, blame.component, 0.0, 0.0, 0.0, likely, (*words, *same),
        "the same test of others that cross it, at their rate", cause, {"excess": blame.excess}, blame.alternatives,
    )  # fmt: skip
    return EvidenceVerdict(
        diagnosis,
        (),
        sure=False,
        hosts=_hosts(blame.component),
        unadvised=advice.why_not(diagnosis),
        told_by="counters and links of both ends, taken twice (c4bench doctor --files); the same test after a swap",
    )


def _hosts(component: Component) -> tuple[str, ...]:
    """The hosts of a NIC, or of both ends of a path, as far as names say."""
    if component.kind == "link":
        return ()
    return tuple(dict.fromkeys(name.partition("/")[0] for name in component.name.split(">")))
