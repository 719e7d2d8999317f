"""How likely the component of a finding is the right one: by how often it was in campaigns.

The counts are of the lab's recordings of the seeds 101 to 105 with three sets of packages, and of the simulator's seeds
100 to 399, all of which may be tuned on (docs/campaign.md).
"""

from collections.abc import Mapping
from types import MappingProxyType

from c4bench.model.diagnosis import Cause

# Findings with as many others that may be to blame, up to the next number, are counted together.
OTHERS = (0, 1, 2, 6)
# What was never seen has the chance of a draw among all, and at most this, which counts as so many findings.
_MOST = 0.8
_PRIOR = 1.0

Counts = tuple[tuple[int, int], ...]  # of each number of others: how many were right, of how many
_NONE: Counts = ((0, 0),) * len(OTHERS)
SEEN: Mapping[tuple[Cause, str], Counts] = MappingProxyType(
    {
        (Cause.COLLECTIVE_TYPE_MISMATCH, "job"): ((38, 38), (0, 0), (0, 0), (0, 0)),
        (Cause.COMPLETION_NOT_SEEN, "rank"): ((3, 3), (0, 0), (0, 0), (0, 0)),
        (Cause.COMPUTE_SLOW, "rank"): ((114, 114), (0, 0), (0, 0), (0, 0)),
        (Cause.CONNECTION_STALLED, "link"): ((0, 0), (10, 23), (0, 0), (1, 9)),
        (Cause.CONNECTION_STALLED, "nic"): ((14, 14), (3, 3), (5, 5), (14, 15)),
        (Cause.CONNECTION_STALLED, "path"): ((0, 0), (0, 0), (0, 41), (0, 5)),
        (Cause.HOST_SILENT, "host"): ((24, 24), (0, 0), (0, 0), (0, 0)),
        (Cause.LINK_MISSING, "link"): ((0, 0), (0, 0), (9, 9), (0, 8)),
        (Cause.NOT_ENTERED, "rank"): ((28, 28), (0, 0), (0, 0), (0, 0)),
        (Cause.PACKETS_LOST, "link"): ((0, 0), (4, 4), (0, 0), (0, 0)),
        (Cause.PACKETS_LOST, "nic"): ((2, 2), (12, 12), (0, 0), (3, 3)),
        (Cause.PACKETS_LOST, "path"): ((0, 1), (0, 0), (0, 11), (0, 15)),
        (Cause.PORT_DOWN, "link"): ((0, 0), (13, 13), (0, 0), (0, 0)),
        (Cause.PORT_DOWN, "nic"): ((25, 25), (0, 0), (0, 0), (0, 0)),
        (Cause.PROCESS_ENDED, "rank"): ((84, 84), (0, 0), (0, 0), (0, 0)),
        (Cause.PROCESS_STOPPED, "rank"): ((26, 26), (0, 0), (0, 0), (0, 0)),
        (Cause.TRANSFER_SLOW, "link"): ((0, 0), (3, 3), (0, 0), (0, 0)),
        (Cause.TRANSFER_SLOW, "nic"): ((58, 58), (0, 0), (0, 0), (7, 9)),
        (Cause.TRANSFER_SLOW, "path"): ((0, 0), (0, 0), (0, 23), (0, 8)),
    }
)
# The same of what probes have left.
PROBED: Mapping[tuple[Cause, str], Counts] = MappingProxyType({})


def confidence(cause: Cause, kind: str, others: int = 0, *, probed: bool = False) -> float:
    """The chance that a component of this `kind`, which is named for `cause`, is the right one.

    `others` is how many other components the evidence fits about as well, whether the finding names them or not.
    `probed`: they are what probes have left.
    """
    place = sum(others >= edge for edge in OTHERS) - 1
    right, seen = (PROBED if probed else SEEN).get((cause, kind), _NONE)[place]
    return (right + _PRIOR * min(_MOST, 1 / (1 + others))) / (seen + _PRIOR)
