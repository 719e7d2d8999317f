"""How likely the component of a finding is the right one: by how often it was in campaigns.

The counts are of the lab's recordings of the seeds 101 to 105 with three sets of packages, before there were probes,
of the seeds 1, 101, 203, 204 and 411 to 417 with probes, and of the simulator's seeds 100 to 399 (docs/campaign.md).
Those of packet trains are mostly of slow faults of rings.
"""

from collections.abc import Mapping
from types import MappingProxyType

from c4bench.model.diagnosis import Cause, Diagnosis

# Findings with as many others that may be to blame, up to the next number, are counted together.
OTHERS = (0, 1, 2, 6)
# What was never seen has the chance of a draw among all, and at most this, which counts as so many findings. What
# probes have left has the share of all such findings instead: probes end when no more of them could tell.
_MOST = 0.8
_PRIOR = 1.0

Counts = tuple[tuple[int, int], ...]  # of each number of others: how many were right, of how many
_NONE: Counts = ((0, 0),) * len(OTHERS)
SEEN: Mapping[tuple[Cause, str], Counts] = MappingProxyType(
    {
        (Cause.COLLECTIVE_TYPE_MISMATCH, "job"): ((38, 38), (0, 0), (0, 0), (0, 0)),
        (Cause.COMPLETION_NOT_SEEN, "rank"): ((3, 3), (0, 0), (0, 0), (0, 0)),
        (Cause.COMPUTE_SLOW, "rank"): ((140, 140), (0, 0), (0, 0), (0, 0)),
        (Cause.CONNECTION_STALLED, "link"): ((0, 0), (18, 39), (0, 0), (2, 14)),
        (Cause.CONNECTION_STALLED, "nic"): ((25, 25), (6, 6), (7, 10), (22, 24)),
        (Cause.CONNECTION_STALLED, "path"): ((0, 0), (0, 0), (0, 43), (0, 7)),
        (Cause.HOST_SILENT, "host"): ((41, 41), (0, 0), (0, 0), (0, 0)),
        (Cause.LINK_MISSING, "link"): ((0, 0), (6, 6), (23, 23), (0, 9)),
        (Cause.NOT_ENTERED, "rank"): ((39, 39), (0, 0), (0, 0), (0, 0)),
        (Cause.PACKETS_LOST, "link"): ((0, 0), (12, 12), (0, 0), (0, 0)),
        (Cause.PACKETS_LOST, "nic"): ((7, 7), (25, 25), (0, 0), (4, 4)),
        (Cause.PACKETS_LOST, "path"): ((0, 1), (0, 0), (0, 14), (0, 32)),
        (Cause.PORT_DOWN, "link"): ((0, 0), (23, 23), (0, 0), (0, 0)),
        (Cause.PORT_DOWN, "nic"): ((44, 44), (0, 0), (0, 0), (0, 0)),
        (Cause.PORT_DOWN, "switch"): ((4, 4), (0, 0), (0, 0), (0, 0)),
        (Cause.PROCESS_ENDED, "rank"): ((117, 117), (0, 0), (0, 0), (0, 0)),
        (Cause.PROCESS_STOPPED, "rank"): ((35, 35), (0, 0), (0, 0), (0, 0)),
        (Cause.TRANSFER_SLOW, "link"): ((0, 0), (7, 7), (0, 0), (0, 0)),
        (Cause.TRANSFER_SLOW, "nic"): ((65, 65), (4, 4), (0, 0), (13, 15)),
        (Cause.TRANSFER_SLOW, "path"): ((0, 0), (0, 0), (0, 23), (0, 11)),
    }
)
# The same of what probes have left.
PROBED: Mapping[tuple[Cause, str], Counts] = MappingProxyType(
    {
        (Cause.CONNECTION_STALLED, "link"): ((18, 18), (4, 5), (1, 2), (0, 0)),
        (Cause.CONNECTION_STALLED, "nic"): ((1, 1), (7, 7), (8, 8), (0, 0)),
        (Cause.PACKETS_LOST, "link"): ((0, 0), (1, 1), (0, 0), (0, 0)),
        (Cause.PACKETS_LOST, "nic"): ((0, 0), (16, 16), (1, 1), (0, 0)),
        (Cause.TRANSFER_SLOW, "link"): ((0, 0), (7, 7), (0, 0), (0, 0)),
        (Cause.TRANSFER_SLOW, "nic"): ((1, 1), (12, 12), (2, 2), (0, 0)),
    }
)


_RIGHT, _FOUND = (sum(row[part] for counts in PROBED.values() for row in counts) for part in (0, 1))
_SHARE_OF_PROBED = (_RIGHT + 1) / (_FOUND + 2)


def confidence(cause: Cause, kind: str, others: int = 0, *, probed: bool = False) -> float:
    """The chance that a component of this `kind`, which is named for `cause`, is the right one.

    `others` is how many other components the evidence fits about as well, whether the finding names them or not.
    `probed`: they are what probes have left.
    """
    right, seen = _counted(cause, kind, others, probed=probed)
    before = _SHARE_OF_PROBED if probed else min(_MOST, 1 / (1 + others))
    return (right + _PRIOR * before) / (seen + _PRIOR)


def behind(diagnosis: Diagnosis) -> tuple[int, int]:
    """How many findings like this one were right, of how many: the counts that its confidence comes from.

    The evidence may fit others as well that it does not name.
    """
    if diagnosis.cause is None:
        return 0, 0
    alike, cause, kind = len(diagnosis.alternatives), diagnosis.cause, diagnosis.component.kind
    every = range(alike, max(alike, OTHERS[-1]) + 1)
    stated = (n for n in every if confidence(cause, kind, n, probed=diagnosis.probed) == diagnosis.confidence)
    return _counted(cause, kind, next(stated, alike), probed=diagnosis.probed)


def _counted(cause: Cause, kind: str, others: int, *, probed: bool) -> tuple[int, int]:
    place = sum(others >= edge for edge in OTHERS) - 1
    return (PROBED if probed else SEEN).get((cause, kind), _NONE)[place]
