"""The number of QPs of a communicator's connections, where its options leave it to C4P, and the window for them."""

from dataclasses import replace

import msgspec

from c4bench.collective.wiring import RankEndpointContext
from c4bench.model.fabric import USUAL_QPS

# Built at import: msgspec 0.22 has crashed when two threads decoded a type for the first time at once.
_decode = msgspec.msgpack.Decoder(int).decode


def with_qps(site: RankEndpointContext, *, closed: bool) -> RankEndpointContext:
    """The same site, with a number of QPs in its options and a window for them.

    If the options leave the number open, it is the largest that C4P gives to any rank. Each rank asks about the
    connections to its neighbour in the ring, or in the chain if not `closed`. A ring crosses every part of the fabric
    that lies between its ranks, so no further pairs need to be learnt. With ECMP the number is the usual one. Raises
    CollectiveError as `RankEndpointContext.exchange` does.
    """
    options = site.options
    qps = options.qps or USUAL_QPS
    if not options.qps and options.paths == "planned" and site.size > 1:
        qps = max(map(_decode, site.exchange("ring/qps", msgspec.msgpack.encode(_asked(site, closed)))))
    return replace(site, options=options.with_qps(qps))


def _asked(site: RankEndpointContext, closed: bool) -> int:
    """What C4P answers about this rank's own connections; the usual number if it sends to none."""
    right = (site.rank + 1) % site.size
    if not (closed or right):
        return USUAL_QPS
    pairs = zip((nic.name for nic in site.nics), site.members[right].nics, strict=False)
    return site.process.rendezvous.choose_qps(list(pairs))
