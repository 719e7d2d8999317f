"""What NICs count of lost packets: the most that a cell can have lost, by the counts of its two ends."""

from collections.abc import Mapping

from c4bench.attribution.localise import Cell
from c4bench.c4d.ingest.clocks import HostClocks
from c4bench.c4d.ingest.job_view import JobView
from c4bench.c4d.ingest.nic_counters import Counts

NO_COUNTS = Counts()


def nic_loss_counts(job: JobView, clocks: HostClocks, since_s: float) -> dict[str, Counts]:
    """The counts of the NICs that counted anything since `since_s` (s, master's clock)."""
    restless = (
        (nic, view, since_s - clocks.offset_s(view.host))
        for nic, view in job.devices.items()
        if view.grew_s is not None
    )
    return {
        nic: view.grown(from_s) for nic, view, from_s in restless if view.grew_s is not None and view.grew_s > from_s
    }


def lost_packets(cell: Cell, counts: Mapping[str, Counts]) -> float:
    """The most data packets that a cell can have lost, by the counts of its ends."""
    return float(min(counts.get(cell[0], NO_COUNTS).retransmits, counts.get(cell[1], NO_COUNTS).out_of_sequence))


def unanswered_packets(cell: Cell, counts: Mapping[str, Counts]) -> float:
    """The most packets that a cell can have retransmitted although they had arrived."""
    return float(min(counts.get(cell[0], NO_COUNTS).retransmits, counts.get(cell[1], NO_COUNTS).duplicates))
