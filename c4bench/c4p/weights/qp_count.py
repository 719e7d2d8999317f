"""How many QPs a connection needs: more where links are thinner than its NICs."""

from collections.abc import Iterable, Mapping, Sequence
from math import ceil

from c4bench.model.fabric import USUAL_QPS

# Every QP takes memory on both hosts, for each peer and NIC. This serves links down to a quarter of the NICs' rate.
MAX_QPS = 16


def needed_qps(paths: Iterable[Sequence[str]], capacities: Mapping[str, float]) -> int:
    """The number of QPs, at most `MAX_QPS`, of a connection that may use these paths, given by their hops.

    `capacities` are bit/s by hop; a link that is not in them is as fast as the fastest, and one of capacity 0 is dead.
    Without them, all links count alike. The first and last link of a path are those of the NICs: a bond has several.

    What a QP may have unacknowledged is limited (128 packets for rxe), so `USUAL_QPS` of them keep the queue of a link
    full. A link of a fraction f of the slower NIC's rate carries that share of the connection, and so gets that share
    of its QPs. It has `USUAL_QPS` of them if the connection has `USUAL_QPS / f`. The thinnest link decides.
    """
    fastest_bps = max(capacities.values(), default=1.0)
    usable = [hops for hops in paths if hops and all(capacities.get(hop, fastest_bps) > 0 for hop in hops)]
    if not usable:
        return USUAL_QPS
    nic_bps = min(sum(capacities.get(hop, fastest_bps) for hop in {hops[end] for hops in usable}) for end in (0, -1))
    thinnest_bps = min(capacities.get(hop, fastest_bps) for hops in usable for hop in hops)
    return max(USUAL_QPS, min(MAX_QPS, ceil(USUAL_QPS * nic_bps / thinnest_bps)))
