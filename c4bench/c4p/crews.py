"""QPs that the plan has no load for help those that have most: each QP has only so much on its way at a time.

A link that is asked for more than it carries has a queue, and acknowledgements wait in the queues of the way back. What
one QP may have unacknowledged (128 packets for rxe) does not last for both; what several may have does.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from c4bench.c4p.weights import connection
from c4bench.model.fabric import Flow


def crews(shares: Mapping[str, float], flows: Iterable[Flow]) -> dict[str, str]:
    """Whose path each flow takes, by id: of its connection's flows with a share one, its own if it has one itself.

    All who take a path carry the same; the crews are such that the largest part that any has to carry is least. Flows
    without an entry in `shares`, and connections without a share, are left out.
    """
    found: dict[str, str] = {}
    for members in _by_connection(shares, flows).values():
        crew = {flow: 1 for flow in members if shares[flow] > 0}
        found |= {flow: flow for flow in crew}
        for flow in members if crew else ():
            if flow not in crew:
                leader = max(crew, key=lambda one: shares[one] / crew[one])
                crew[leader] += 1
                found[flow] = leader
    return found


def _by_connection(shares: Mapping[str, float], flows: Iterable[Flow]) -> dict[tuple[str, str, str], list[str]]:
    found: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for flow in sorted(flows, key=lambda flow: flow.id):
        if flow.id in shares:
            found[connection(flow)].append(flow.id)
    return found
