"""The health check of a host out of service: real transfers between each of its NICs and another host, both ways."""

import itertools
from typing import TYPE_CHECKING

from c4bench.model.fabric import Host, Nic
from c4bench.model.telemetry import Member
from c4bench.units import payload_bound
from c4bench.wire.messages import JobSpec

if TYPE_CHECKING:
    from c4bench.control.master import Master

_MESSAGE_BYTES = 256 << 10
_TOTAL_BYTES = 16 << 20
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


async def _fraction(master: "Master", source: Nic, destination: Nic) -> float:
    ends = (source, destination)
    spec = JobSpec(
        id=f"check~{next(_numbers)}",
        program="link",
        members=tuple(Member(rank, nic.host, (nic.name,)) for rank, nic in enumerate(ends)),
        nics=ends,
        parameters={"sizes_bytes": [_MESSAGE_BYTES], "total_bytes": _TOTAL_BYTES, "profile": "brisk"},
    )
    # Should we be gone before it ends, whoever comes after us will end it.
    master.register.over(spec.id)
    try:
        job = await master.begin(spec, followed=False)
        (sent,) = (await job.wait("link", len(ends), _WITHIN_S))[0]["sent"]
    finally:
        await master.end(spec.id)
    moved_bits = sent["size_bytes"] * sent["messages"] * 8
    return float(moved_bits / (sent["ended_s"] - sent["began_s"]) / payload_bound(min(nic.rate_bps for nic in ends)))
