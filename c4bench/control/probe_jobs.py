"""Real transfers between NICs: how well they carry, or whether they do at all."""

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from c4bench.errors import UnhealthyError
from c4bench.model.diagnosis import ProbeFlow
from c4bench.model.fabric import Host, Nic
from c4bench.model.telemetry import Member
from c4bench.units import payload_bound
from c4bench.wire.messages import CHECK, PROBE, JobSpec

if TYPE_CHECKING:
    from c4bench.control.master import Master

_MESSAGE_BYTES = 256 << 10
_LONG_BYTES = 16 << 20
_SHORT_BYTES = 1 << 20
_WITHIN_S = 20.0
# Of so many at least one meets nothing else, and each is long beside what hops add to it.
_PROBE_MESSAGES = 10
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


async def shares(master: "Master", steps: Sequence[Sequence[ProbeFlow]], nics: Mapping[str, Nic]) -> list[float]:
    """What each probe comes to, as a share of the payload bound of its NICs; 0 where it fails.

    Those of a step, in which no NIC is twice, are sent at once. Raises UnhealthyError when they cannot be sent.
    """
    said = await _run(master, _probing(steps, nics), "pairs")
    rates = {
        (one["source"], one["destination"], one["source_port"]): float(one["rate_bps"])
        for told in said
        for one in told["found"]
    }
    probes = list(itertools.chain.from_iterable(steps))
    bounds = [payload_bound(min(nics[one.source].rate_bps, nics[one.destination].rate_bps)) for one in probes]
    flows = [(one.source, one.destination, one.source_port) for one in probes]
    return [rates[flow] / bound for flow, bound in zip(flows, bounds, strict=True)]


def _probing(steps: Sequence[Sequence[ProbeFlow]], nics: Mapping[str, Nic]) -> JobSpec:
    """A rank for each NIC, since a rank takes part in one transfer after another."""
    probes = list(itertools.chain.from_iterable(steps))
    used = list(dict.fromkeys(nics[name] for probe in probes for name in (probe.source, probe.destination)))
    total_bytes = int(min(probe.rate_bps * probe.duration_s for probe in probes) / 8)
    transfers = [
        [{"source": one.source, "destination": one.destination, "source_port": one.source_port} for one in step]
        for step in steps
    ]
    return JobSpec(
        id=f"{PROBE}{next(_numbers)}",
        program="pairs",
        members=tuple(Member(rank, nic.host, (nic.name,)) for rank, nic in enumerate(used)),
        nics=tuple(used),
        parameters={
            "steps": transfers,
            "size_bytes": max(1, total_bytes // _PROBE_MESSAGES),
            "messages": _PROBE_MESSAGES,
            "gap_s": probes[0].duration_s / _PROBE_MESSAGES,
        },
    )


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
        id=f"{CHECK}{next(_numbers)}",
        program="link",
        members=tuple(Member(rank, nic.host, (nic.name,)) for rank, nic in enumerate(ends)),
        nics=ends,
        parameters={"sizes_bytes": [_MESSAGE_BYTES], "total_bytes": total_bytes, "profile": "brisk"},
    )
    (sent,) = (await _run(master, spec, "link"))[0]["sent"]
    moved_bits = sent["size_bytes"] * sent["messages"] * 8
    return float(moved_bits / (sent["ended_s"] - sent["began_s"]) / payload_bound(min(nic.rate_bps for nic in ends)))


async def _run(master: "Master", spec: JobSpec, kind: str) -> list[dict[str, Any]]:
    """Run a short job of our own, and return what its ranks have reported."""
    # Should we be gone before it ends, whoever comes after us will end it.
    master.register.over(spec.id)
    try:
        job = await master.attempts.begin(spec, followed=False)
        return await job.wait(kind, len(spec.members), _WITHIN_S)
    finally:
        await master.attempts.end(spec.id)
