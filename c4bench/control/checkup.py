"""Real transfers between NICs: how well they carry, or whether they do at all."""

import asyncio
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from c4bench.errors import UnhealthyError
from c4bench.model.fabric import Host, Nic
from c4bench.model.telemetry import Member
from c4bench.units import payload_bound
from c4bench.wire.messages import JobSpec

if TYPE_CHECKING:
    from c4bench.control.master import Master

_MESSAGE_BYTES = 256 << 10
_LONG_BYTES = 16 << 20
_SHORT_BYTES = 1 << 20
_WITHIN_S = 20.0
_numbers = itertools.count(1)


async def worst_fraction(master: "Master", host: Host, partner: Host) -> float:
    """Goodput of the worst NIC of `host` in its worse direction, as a share of the payload bound.

    Raises UnhealthyError when a transfer fails.
    """
    found = []
    for nic, other in zip(host.nics, itertools.cycle(partner.nics), strict=False):
        found += [await _fraction(master, nic, other), await _fraction(master, other, nic)]
    return min(found)


async def failing(master: "Master", pairs: Sequence[tuple[Nic, Nic]]) -> list[tuple[Nic, Nic]]:
    """Those pairs that do not carry in both directions; all are tried at once, with little."""
    carried = await asyncio.gather(*(_carries(master, *pair) for pair in pairs))
    return [pair for pair, well in zip(pairs, carried, strict=True) if not well]


async def _carries(master: "Master", nic: Nic, other: Nic) -> bool:
    try:
        await _fraction(master, nic, other, _SHORT_BYTES)
        await _fraction(master, other, nic, _SHORT_BYTES)
    except UnhealthyError:
        return False
    return True


async def _fraction(master: "Master", source: Nic, destination: Nic, total_bytes: int = _LONG_BYTES) -> float:
    ends = (source, destination)
    spec = JobSpec(
        id=f"check~{next(_numbers)}",
        program="link",
        members=tuple(Member(rank, nic.host, (nic.name,)) for rank, nic in enumerate(ends)),
        nics=ends,
        parameters={"sizes_bytes": [_MESSAGE_BYTES], "total_bytes": total_bytes, "profile": "brisk"},
    )
    # Should we be gone before it ends, whoever comes after us will end it.
    master.register.over(spec.id)
    try:
        job = await master.attempts.begin(spec, followed=False)
        (sent,) = (await job.wait("link", len(ends), _WITHIN_S))[0]["sent"]
    finally:
        await master.attempts.end(spec.id)
    moved_bits = sent["size_bytes"] * sent["messages"] * 8
    return float(moved_bits / (sent["ended_s"] - sent["began_s"]) / payload_bound(min(nic.rate_bps for nic in ends)))
