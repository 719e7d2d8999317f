"""What lost NICs cost an all-reduce and a training step: the cost model of R2CCL (arXiv 2512.25059), flow by flow.

Servers form a ring; a server that has lost the fraction X of its NICs has the bandwidth (1 - X) B. The ways to go on:

`balance`: the ring as it is, so all go at the pace of the slowest server: T/T0 = 1 / (1 - X).
`repair`: the lost NIC's flows all go by one other NIC, which carries twice its share: T/T0 = 2.
`split` (the paper's R2-AllReduce): all reduce the fraction 1 - Y together, while the healthy ones reduce the rest among
themselves; then the degraded ones' part is folded in and the result sent back, pipelined in K chunks. With Y = X and
one degraded server T/T0 = 1 + n X (1 + 1/K) / (2 (n - 1) (1 - X)).
`nest` (its recursion): where servers have lost different parts, a ring without each set of them that has lost the same.

Times are in units of D/B: what one server needs to send its whole array once.
"""

from collections.abc import Sequence

import msgspec

_STEPS = 400


class Cost(msgspec.Struct, frozen=True):
    """A way to go on: its name, its time relative to the healthy ring, and the part `y` that it splits off."""

    way: str
    relative: float
    y: float = 0.0


class Ring(msgspec.Struct, frozen=True):
    """All but `without` servers, two at least, by the part `by` of a server's bandwidth, which those have lost."""

    without: int
    by: float


class Nest(msgspec.Struct, frozen=True):
    """What rings beside each other come to: the time relative to the healthy ring, and the part each ring reduces."""

    relative: float
    parts: tuple[float, ...]


def healthy(servers: int) -> float:
    """A ring all-reduce's time."""
    return 2 * (servers - 1) / servers


def balance(lost: Sequence[float]) -> float:
    """Relative time of the ring at the slowest server's pace; `lost` is the fraction that each server has lost."""
    _check(lost)
    return 1 / (1 - max(lost))


def repair(lost: Sequence[float]) -> float:
    """Relative time where nothing is spread: one NIC carries its own flows and a lost one's."""
    _check(lost)
    return 2.0 if max(lost) else 1.0


def split(lost: Sequence[float], y: float, chunks: int = 4) -> float:
    """Relative time of the split at `y`, both parts' flows sharing what bandwidth each server has.

    The second stage waits for the first and is pipelined: its first chunk's way comes on top.
    """
    _check(lost)
    servers = len(lost)
    well = sum(not each for each in lost)
    together = healthy(servers) * (1 - y)
    if well < 2:
        return balance(lost) if not y else float("inf")
    among = healthy(well) * y
    slowest = 1 - max(lost)
    first = max(together + among, together / slowest)
    second = y / slowest * (1 + 1 / chunks) if max(lost) else 0.0
    return (first + second) / healthy(servers)


def paper(servers: int, x: float, chunks: int) -> float:
    """The paper's closed form for one degraded server and Y = X."""
    return 1 + servers * x * (1 + 1 / chunks) / (2 * (servers - 1) * (1 - x))


def cheapest_strategy(lost: Sequence[float], chunks: int = 4) -> Cost:
    """The cheapest way for this state of the fabric."""
    ways = [Cost("balance", balance(lost))]
    ways += [Cost("split", split(lost, step / _STEPS, chunks), step / _STEPS) for step in range(1, _STEPS)]
    return min(ways, key=lambda cost: cost.relative)


def nest(servers: int, left: float, rings: Sequence[Ring], chunks: int) -> Nest:
    """Split where several servers have lost NICs: beside the ring of all, by the part `left` of the bandwidth.

    All rings are done with their parts at the same time; those beside only scatter their sums. Then, ring by ring, the
    servers it went without send theirs, while everybody is given the result. The more these are, the more each of the
    others has to give. Without `rings` it is balance.
    """
    paces = [left / healthy(servers), *(2 * ring.by / healthy(servers - ring.without) for ring in rings)]
    given = [(servers - 1) / (servers - ring.without) / left * (1 + 1 / chunks) for ring in rings]
    first = 1 / sum(paces)
    parts = tuple(first * pace for pace in paces[1:])
    second = sum(part * each for part, each in zip(parts, given, strict=True))
    return Nest((first + second) / healthy(servers), parts)


def spread(failures: Sequence[int], servers: int, nics: int) -> list[float]:
    """The fraction that each server has lost, when the numbered NICs (server x `nics` + NIC) have failed."""
    lost = [0.0] * servers
    for failure in set(failures):
        lost[failure // nics] += 1 / nics
    return lost


def step_overhead(relative: float, communication: float, exposed: float) -> float:
    """How much longer a training step takes, relative to a healthy one.

    `communication` is the all-reduces' share of a healthy step's time, of which the part `exposed` is not hidden behind
    compute; what the slower all-reduce adds is hidden as long as there is compute left to hide it.
    """
    hidden = communication * (1 - exposed)
    compute = 1 - communication * exposed
    room = max(0.0, compute - hidden)
    added = communication * (relative - 1)
    return max(added * exposed, added - room)


def _check(lost: Sequence[float]) -> None:
    if not lost or not all(0 <= each < 1 for each in lost):
        raise ValueError(f"{list(lost)} are not fractions from 0 to below 1, one for each server")
