"""A large all-reduce beside a host that has lost a NIC: as fast as the cost model says, and exact."""

from typing import NamedTuple

import msgspec
import pytest
from rates import usual

from c4bench.sim.degraded import balance, best
from c4bench.workload.trials import Trial

NEVER = 1 << 40
SMALL_BYTES = 256 << 10
# As `collective.degraded` cuts what it folds.
CHUNKS = 32
# The large operations of a trial, and the small ones by which ranks have agreed on what is lost.
OPERATIONS, AGREED_S = 5, 0.5


class Load(NamedTuple):
    """An all-reduce for hosts of this kind, about how long it takes, and how messages are cut."""

    size_bytes: int
    seconds: float
    options: dict


def load(nics):
    """Large enough for latency to count for nothing."""
    slow = nics[0].rate_bps < 1e9
    size_bytes = len(nics) << 20 if slow else 64 << 20
    seconds = 2 * size_bytes * 8 / sum(nic.rate_bps for nic in nics)
    return Load(
        size_bytes, seconds, {"chunk_bytes": 16 << 10, "window": 4} if slow else {"chunk_bytes": 0, "window": 8}
    )


@pytest.mark.needs(hosts=4)
def test_all_reduce_beside_a_lost_nic(start, several_nics, inject, measure):
    """With one NIC of a host lost the split is as fast as its model, faster than balance, and exact.

    So it is when another host loses a NIC in the middle of one.
    """
    nics = several_nics[0].nics
    what = load(nics)
    trial = Trial("all_reduce", what.size_bytes, seconds=OPERATIONS * what.seconds)
    agree = Trial("all_reduce", SMALL_BYTES, seconds=AGREED_S)
    ways = {
        "balance": start(several_nics, split_bytes=NEVER, **what.options),
        "split": start(several_nics, split_bytes=SMALL_BYTES, **what.options),
    }
    members = ways["split"].spec.members
    odd = next(member.rank for member in members if member.host == several_nics[2].name)
    lost = [1 / len(nics) if member.rank == odd else 0.0 for member in members]
    first = msgspec.structs.replace(trial, fresh=True)
    healthy_s = {way: usual(ranks(first)) for way, ranks in ways.items()}
    took_s = {}
    with inject("nic.down", host=several_nics[2].name, nic=0):
        for way, ranks in ways.items():
            ranks(agree)
            accounts = ranks(trial)
            took_s[way] = usual(accounts)
        done = accounts[0].resilience.split
        assert done > 0
        # Not a neighbour of the first: these would have no pair of NICs left.
        ranks.give(trial)
        with inject("nic.blackhole", host=members[(odd + 2) % len(members)].host, nic=1, direction="both") as second:
            accounts = ranks.take()
    said = f"1 of {len(nics)}"
    cost = best(lost, CHUNKS)
    models = {"balance": balance(lost), "split": cost.relative}
    for way, model in models.items():
        error = abs(took_s[way] / healthy_s[way] / model - 1)
        measure("resilient.model_error", error, at_most=0.05, model=way, lost=said)
    measure("resilient.split_speedup", took_s["balance"] / took_s["split"], at_least=1, lost=said)
    usual(accounts)
    before = sum(ended < second.onset_s for _, ended in accounts[0].spans)
    assert accounts[0].resilience.split - done > before, "the second fault hit no operation beside a degraded host"
