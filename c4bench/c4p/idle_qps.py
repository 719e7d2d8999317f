"""QPs that the plan has no load for help those that have most: each QP has only so much on its way at a time.

A link that is asked for more than it carries has a queue, and acknowledgements wait in the queues of the way back. What
one QP may have unacknowledged (128 packets for rxe) does not last for both; what several may have does.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from c4bench.model.fabric import Flow
from c4bench.model.qp_address import connection_key


class QpShare(NamedTuple):
    """Whose path a flow takes, which may be its own, and the share of its connection's load that it carries there."""

    leader: str
    share: float


def assign_idle_qps(shares: Mapping[str, float], flows: Iterable[Flow]) -> dict[str, QpShare]:
    """The part of each flow by id: those without a share take the path of one of their connection's that has one.

    All who take a path carry the same; the crews are such that the largest part that any has to carry is least. Flows
    without an entry in `shares`, and connections without a share, are left out.
    """
    found: dict[str, QpShare] = {}
    for members in _by_connection(shares, flows).values():
        sizes = Counter(flow for flow in members if shares[flow] > 0)
        leaders = dict(zip(sizes, sizes, strict=True))
        for flow in members if sizes else ():
            if flow not in leaders:
                leaders[flow] = max(sizes, key=lambda one: shares[one] / sizes[one])
                sizes[leaders[flow]] += 1
        found |= {flow: QpShare(leader, shares[leader] / sizes[leader]) for flow, leader in leaders.items()}
    return found


def _by_connection(shares: Mapping[str, float], flows: Iterable[Flow]) -> dict[tuple[str, str, str], list[str]]:
    found: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for flow in sorted(flows, key=lambda flow: flow.id):
        if flow.id in shares:
            found[connection_key(flow)].append(flow.id)
    return found
