"""A large all-reduce that avoids lost NICs is exact and as fast as the cost model predicts."""

from contextlib import ExitStack
from typing import NamedTuple

import msgspec
import pytest
from rates import default_split

from c4bench.cost.degraded import Ring, balance, cheapest_strategy, nest
from c4bench.workload.trials import Trial

NEVER = 1 << 40
SMALL_BYTES = 256 << 10
# As `collective.detour` cuts what is folded.
CHUNKS = 32
# The large operations of a trial, and the small ones by which ranks have agreed on what is lost.
OPERATIONS, AGREED_S = 5, 0.5
# How long it takes at least until a fault is injected.
INJECTING_S = 0.4


class Load(NamedTuple):
    """An all-reduce for hosts of this kind, about how long it takes, and how messages are cut.

    Where there would be too many operations in a while, each begins `apart_s` after the last.
    """

    size_bytes: int
    seconds: float
    apart_s: float
    options: dict


def load(nics):
    """Large enough for latency to count for nothing."""
    slow = nics[0].rate_bps < 1e9
    size_bytes = len(nics) << 20 if slow else 64 << 20
    seconds = 2 * size_bytes * 8 / sum(nic.rate_bps for nic in nics)
    if slow:
        return Load(size_bytes, seconds, 0.0, {"chunk_bytes": 16 << 10, "window": 4})
    return Load(size_bytes, seconds, 0.02, {"chunk_bytes": 0, "window": 8})


@pytest.fixture(params=["hosts", pytest.param("gpus", marks=pytest.mark.nightly)])
def width(request, several_nics):
    """How many ranks a host has: one, or one for each GPU."""
    if request.param == "hosts":
        return 1
    if not several_nics[0].gpus:
        pytest.skip("no-gpus: this topology has no GPUs; try --c4-topology gpu-4x4")
    return len(several_nics[0].gpus)


class Ways:
    """Ranks that always go by the ring as it is, and ranks that may go around what is lost.

    `hosts` are their names, in the order of the ring.
    """

    def __init__(self, start, hosts, width=1):
        what = load(hosts[0].nics)
        self.width = width
        self.agreeing = Trial("all_reduce", SMALL_BYTES, AGREED_S, what.apart_s)
        self.until_hit = Trial("all_reduce", what.size_bytes, max(INJECTING_S, OPERATIONS * what.seconds), what.apart_s)
        self.trial = Trial("all_reduce", what.size_bytes, seconds=OPERATIONS * what.seconds)
        self.ring = start(hosts, self.width, split_bytes=NEVER, **what.options)
        self.around = start(hosts, self.width, split_bytes=SMALL_BYTES, **what.options)
        self.hosts = list(dict.fromkeys(member.host for member in self.ring.spec.members))
        first = msgspec.structs.replace(self.trial, fresh=True)
        self.healthy_s = [default_split(ranks(first)) for ranks in (self.ring, self.around)]
        self.took_s = []

    def take(self):
        """How long an all-reduce takes both ways, once ranks have agreed; what those did that went around."""
        for ranks in (self.ring, self.around):
            default_split(ranks(self.agreeing))
            accounts = ranks(self.trial)
            self.took_s.append(default_split(accounts))
        return accounts[0].resilience

    def check(self, measure, models, said):
        """Both are as fast as their models, and going around is the faster one."""
        for (way, model), took_s, healthy_s in zip(models.items(), self.took_s, self.healthy_s, strict=True):
            error = abs(took_s / healthy_s / model - 1)
            measure("resilient.model_error", error, at_most=0.05, model=way, lost=said, ranks_per_host=self.width)
        speedup = self.took_s[0] / self.took_s[1]
        measure("resilient.around_speedup", speedup, at_least=1, lost=said, ranks_per_host=self.width)


@pytest.mark.needs(hosts=4)
def test_all_reduce_beside_a_lost_nic(start, several_nics, width, inject, measure):
    """With one NIC of a host lost the split is as fast as its model, faster than balance, and exact.

    So it is when another host loses a NIC in the middle of one.
    """
    nics = several_nics[0].nics
    ways = Ways(start, several_nics, width)
    odd = ways.hosts.index(several_nics[2].name)
    with inject("nic.down", host=several_nics[2].name, nic=0):
        done = ways.take().split
        assert done > 0
        # Not a neighbour of the first: these would have no pair of NICs left.
        other = ways.hosts[(odd + 2) % len(ways.hosts)]
        ways.around.give(ways.until_hit)
        with inject("nic.blackhole", host=other, nic=1, direction="both") as second:
            accounts = ways.around.take()
    lost = [1 / len(nics) if number == odd else 0.0 for number in range(len(ways.hosts))]
    models = {"balance": balance(lost), "split": cheapest_strategy(lost, CHUNKS, ways.width).relative}
    ways.check(measure, models, f"1 of {len(nics)}")
    default_split(accounts)
    before = sum(ended < second.onset_s for _, ended in accounts[0].spans)
    assert accounts[0].resilience.split - done > before, "the second fault hit no operation beside a degraded host"


@pytest.mark.needs(hosts=8)
def test_all_reduce_beside_several_lost_nics(start, several_nics, inject, measure):
    """With a NIC lost on each of two hosts the split is as fast as its model, faster than balance, and exact."""
    nics = several_nics[0].nics
    if len(nics) <= 2:
        pytest.skip("few-nics: hosts with one NIC left are not split off together; try --c4-topology blocks-4")
    ways = Ways(start, several_nics)
    with ExitStack() as faults:
        for host in several_nics[1:6:4]:
            faults.enter_context(inject("nic.down", host=host.name, nic=0))
        assert ways.take().split > 0
    left = 1 - 1 / len(nics)
    models = {"balance": 1 / left, "split": nest(len(several_nics), left, [Ring(2, 1 - left)], CHUNKS).relative}
    ways.check(measure, models, f"1 of {len(nics)} on two hosts")


@pytest.mark.needs(hosts=8)
def test_all_reduce_beside_unlike_hosts(start, several_nics, inject, measure):
    """With a NIC lost on one host and two on another, rings beside both and beside one are as their model says; exact.

    The others go beside both by what both have lost, and beside the one by what only that has.
    """
    nics = len(several_nics[0].nics)
    if nics < 4:
        pytest.skip("few-nics: hosts with one NIC left are not split off together; try --c4-topology blocks-4")
    ways = Ways(start, several_nics)
    with ExitStack() as faults:
        for host, nic in ((several_nics[1], 0), (several_nics[5], 0), (several_nics[5], 1)):
            faults.enter_context(inject("nic.down", host=host.name, nic=nic))
        assert ways.take().split > 0
    left = 1 - 2 / nics
    rings = [Ring(2, 1 / nics), Ring(1, 1 / nics)]
    models = {"balance": 1 / left, "split": nest(len(several_nics), left, rings, CHUNKS).relative}
    ways.check(measure, models, f"1 of {nics}, and 2 on another host")


@pytest.mark.needs(hosts=4)
def test_neighbours_have_lost_different_nics(start, several_nics, width, inject, measure):
    """A reordered ring is exact and as fast as its slowest host, not as two neighbours with different NICs."""
    nics = len(several_nics[0].nics)
    each = 3 * nics // 8
    if not each:
        pytest.skip("few-nics: neighbours would share none; try --c4-topology blocks-8 or rails-8")
    ways = Ways(start, several_nics, width)
    with ExitStack() as faults:
        for place, host in enumerate(ways.hosts[1:3]):
            for nic in range(place * each, (place + 1) * each):
                faults.enter_context(inject("nic.down", host=host, nic=nic))
        assert ways.take().reordered > 0
    models = {"plain order": nics / (nics - 2 * each), "another order": nics / (nics - each)}
    ways.check(measure, models, f"{each} of {nics}, and {each} others by a neighbour")
