"""What lost NICs cost an all-reduce and a training step: the cost model of R2CCL (arXiv 2512.25059), flow by flow.

Servers form a ring. A server that has lost the fraction X of its NICs has the bandwidth (1 - X) B. The strategies:

`balance`: the ring stays, and all servers are as slow as the slowest: T/T0 = 1 / (1 - X).
`split` (the paper's R2-AllReduce): all servers reduce the fraction 1 - Y, while the healthy ones reduce the rest among
themselves. Then the degraded servers' values are folded in and the result is sent back, pipelined in K chunks. With
Y = X and one degraded server T/T0 = 1 + n X (1 + 1/K) / (2 (n - 1) (1 - X)).
`nest` (the paper's recursion): servers have lost different fractions, and there is a ring without each set of servers
that have lost the same.

A ring passes `width` ranks of each server, inside which it costs nothing: what leaves a server is that of a ring of all
ranks.

Times are in units of D/B: what one server needs to send its whole array once.
"""

from collections.abc import Sequence

import msgspec

_STEPS = 400


class AllReduceCost(msgspec.Struct, frozen=True):
    """A strategy: its name, its time relative to the healthy ring, and the fraction `y` that it splits off."""

    strategy: str
    relative: float
    y: float = 0.0


class Ring(msgspec.Struct, frozen=True):
    """A ring of all but `without` servers (at least 2), over the fraction `by` of bandwidth that those have lost."""

    without: int
    by: float


class Nest(msgspec.Struct, frozen=True):
    """The cost of several rings at the same time: relative to the healthy ring, and the fraction that each reduces."""

    relative: float
    parts: tuple[float, ...]


def healthy(servers: int, width: int = 1) -> float:
    """The time of a ring all-reduce without losses."""
    return 2 * (servers * width - 1) / (servers * width)


def balance(lost: Sequence[float]) -> float:
    """Relative time of the ring, as slow as its slowest server; `lost` is the fraction that each server has lost."""
    _check(lost)
    return 1 / (1 - max(lost))


def split(lost: Sequence[float], y: float, chunks: int = 4, width: int = 1) -> float:
    """Relative time of the split at `y`; the flows of both parts share each server's bandwidth.

    The second stage waits for the first and is pipelined, so the time of its first chunk is added.
    """
    _check(lost)
    servers = len(lost)
    unaffected = sum(not each for each in lost)
    together = healthy(servers, width) * (1 - y)
    if unaffected < 2:
        return balance(lost) if not y else float("inf")
    among = healthy(unaffected, width) * y
    slowest = 1 - max(lost)
    first = max(together + among, together / slowest)
    second = y / slowest * (1 + 1 / chunks) if max(lost) else 0.0
    return (first + second) / healthy(servers, width)


def cheapest_strategy(lost: Sequence[float], chunks: int = 4, width: int = 1) -> AllReduceCost:
    """The cheapest strategy for this state of the fabric."""
    costs = [AllReduceCost("balance", balance(lost))]
    parts = [step / _STEPS for step in range(1, _STEPS)]
    costs += [AllReduceCost("split", split(lost, part, chunks, width), part) for part in parts]
    return min(costs, key=lambda cost: cost.relative)


def nest(
    servers: int, left: float, rings: Sequence[Ring], chunks: int, width: int = 1, *, around: bool = False
) -> Nest:
    """The split if several servers have lost NICs; the ring of all servers has the fraction `left` of the bandwidth.

    All rings finish their parts at the same time; those without some servers only reduce-scatter. Then, ring by ring,
    the excluded servers send their values, while all servers get the result. The more servers are excluded, the more
    each of the others must send. Without `rings` this is `balance`. With `around` each ring leaves out one server and
    all-reduces, and that one's values go around the ring of all, so each server sends them once.
    """
    whole, rounds = healthy(servers, width), 1 if around else 2
    paces = [left / whole, *(rounds * ring.by / healthy(servers - ring.without, width) for ring in rings)]
    shares = [1.0 if around else (servers - 1) / (servers - ring.without) for ring in rings]
    first = 1 / sum(paces)
    parts = tuple(first * pace for pace in paces[1:])
    second = sum(part * share / left * (1 + 1 / chunks) for part, share in zip(parts, shares, strict=True))
    return Nest((first + second) / whole, parts)


def _check(lost: Sequence[float]) -> None:
    if not lost or not all(0 <= each < 1 for each in lost):
        raise ValueError(f"{list(lost)} are not fractions from 0 to below 1, one for each server")
