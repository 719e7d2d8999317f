"""What one span of a job's delay matrix shows: what the steps of the network stage hold when they name something."""

from collections.abc import Collection, Mapping
from typing import NamedTuple

from c4bench.attribution.localise import Blame, Cell, Links
from c4bench.c4d.ingest.job_view import JobView
from c4bench.c4d.ingest.nic_counters import Counts
from c4bench.c4d.network.benign_explanations import BenignExplanations, CongestionDetector
from c4bench.c4d.network.cell_index import CellValues
from c4bench.c4d.network.evidence import Weights
from c4bench.c4d.network.nic_utilisation import NicUtilisation
from c4bench.c4d.network.one_way_delays import OneWayDelays
from c4bench.model.diagnosis import Component
from c4bench.model.fabric import MissingLink


class Span(NamedTuple):
    """A closed span: its cells (seconds per byte), its bounds (s, master's clock), the links that cells cross."""

    cells: CellValues
    opened_s: float
    closed_s: float
    links: Links


class Judged(NamedTuple):
    """A span with the departures of its cells (log ratios), the evidence against them, and the blames it left."""

    span: Span
    departures: CellValues
    weights: Weights = Weights({})
    blames: tuple[Blame, ...] = ()


class SpanEvidence(NamedTuple):
    """The newest span that was judged, with what each step knows of it.

    `slices` is the evidence against rows, columns and links; `counted` see `PacketLossDetector`.
    """

    view: JobView
    judged: Judged
    slices: Mapping[Component, float]
    utilisation: NicUtilisation
    benign: BenignExplanations
    congestion: CongestionDetector
    one_way: OneWayDelays
    counted: list[tuple[frozenset[Cell], Mapping[str, Counts]]]
    missing: Collection[MissingLink]
