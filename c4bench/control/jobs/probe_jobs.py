"""Short jobs that transfer data between NICs, to measure how fast they are or whether they work at all."""

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeVar

import msgspec

from c4bench.control.jobs.attempts import JobAttempts
from c4bench.control.state.registry import JobRegistry
from c4bench.decoding import DecodingError, decoding
from c4bench.errors import UnhealthyError
from c4bench.model.diagnosis import ProbeFlow
from c4bench.model.fabric import Host, Nic
from c4bench.model.telemetry import Member
from c4bench.units import payload_bound
from c4bench.wire.job_names import CHECK, PROBE
from c4bench.wire.messages import JobSpec

_MESSAGE_BYTES = 256 << 10
_LONG_BYTES = 16 << 20
_SHORT_BYTES = 1 << 20
_WITHIN_S = 20.0
# Of this many, at least one meets no other traffic, and each takes long beside the latency of the hops.
_PROBE_MESSAGES = 10
_numbers = itertools.count(1)
Reported = TypeVar("Reported")


# Times and rates of a rank, which may say anything.
_Amount = Annotated[float, msgspec.Meta(ge=0.0, le=1e15)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 50)]


class _Sent(msgspec.Struct, frozen=True):
    """A transfer as program `link` reports it."""

    size_bytes: _Count
    messages: _Count
    began_s: _Amount
    ended_s: _Amount


class _Link(msgspec.Struct, frozen=True):
    """What the sending rank of program `link` reports."""

    sent: tuple[_Sent]


class _Rate(msgspec.Struct, frozen=True):
    """A transfer as program `pairs` reports it."""

    source: str
    destination: str
    source_port: int
    rate_bps: _Amount


class _Rates(msgspec.Struct, frozen=True):
    """What a rank of program `pairs` reports."""

    found: tuple[_Rate, ...]


def _reported(body: Mapping[str, Any], kind: type[Reported]) -> Reported:
    """What a rank has reported. Raises UnhealthyError if it is of another form."""
    try:
        with decoding():
            return msgspec.convert(body, kind)
    except DecodingError as error:
        raise UnhealthyError(f"what a rank reports of a transfer cannot be read: {error}") from None


class ProbeJobs:
    """Runs transfers as attempts of their own, which C4D does not evaluate."""

    def __init__(self, registry: JobRegistry, attempts: JobAttempts) -> None:
        self._registry, self._attempts = registry, attempts

    async def worst_fraction(self, host: Host, partner: Host) -> float:
        """Goodput of the worst NIC of `host` in its worse direction, as a share of the payload bound.

        Raises UnhealthyError if a transfer fails.
        """
        fractions = []
        for nic, other in zip(host.nics, itertools.cycle(partner.nics), strict=False):
            fractions += [await self._fraction(nic, other), await self._fraction(other, nic)]
        return min(fractions)

    async def failing(self, pairs: Sequence[tuple[Nic, Nic]]) -> list[tuple[Nic, Nic]]:
        """The pairs that fail to transfer a little data in both directions; all are tried at once."""
        working = await asyncio.gather(*(self._works(*pair) for pair in pairs))
        return [pair for pair, works in zip(pairs, working, strict=True) if not works]

    async def shares(self, steps: Sequence[Sequence[ProbeFlow]], nics: Mapping[str, Nic]) -> list[float]:
        """The rate of each probe as a share of the payload bound of its NICs; 0 if it fails.

        The probes of a step, each with NICs of its own, run at once. Raises UnhealthyError if they cannot be sent.
        """
        reports = await self._run(_probing(steps, nics), "pairs")
        rows = [row for report in reports for row in _reported(report, _Rates).found]
        rates = {(row.source, row.destination, row.source_port): row.rate_bps for row in rows}
        probes = list(itertools.chain.from_iterable(steps))
        bounds = [payload_bound(min(nics[flow.source].rate_bps, nics[flow.destination].rate_bps)) for flow in probes]
        flows = [(flow.source, flow.destination, flow.source_port) for flow in probes]
        if missing := next((flow for flow in flows if flow not in rates), None):
            raise UnhealthyError(f"no rank says how fast {missing[0]} sends to {missing[1]}")
        return [rates[flow] / bound for flow, bound in zip(flows, bounds, strict=True)]

    async def _works(self, nic: Nic, other: Nic) -> bool:
        try:
            await self._fraction(nic, other, _SHORT_BYTES)
            await self._fraction(other, nic, _SHORT_BYTES)
        except UnhealthyError:
            return False
        return True

    async def _fraction(self, source: Nic, destination: Nic, total_bytes: int = _LONG_BYTES) -> float:
        ends = (source, destination)
        spec = JobSpec(
            id=f"{CHECK}{next(_numbers)}",
            program="link",
            members=tuple(Member(rank, nic.host, (nic.name,)) for rank, nic in enumerate(ends)),
            nics=ends,
            parameters={"sizes_bytes": [_MESSAGE_BYTES], "total_bytes": total_bytes, "profile": "brisk"},
        )
        (sent,) = _reported((await self._run(spec, "link"))[0], _Link).sent
        duration_s = sent.ended_s - sent.began_s
        if duration_s <= 0:
            raise UnhealthyError(f"{source.host} says that it sent {sent.messages} messages in {duration_s:g} s")
        return sent.size_bytes * sent.messages * 8 / duration_s / payload_bound(min(nic.rate_bps for nic in ends))

    async def _run(self, spec: JobSpec, kind: str) -> list[dict[str, Any]]:
        """Run a short job, and return the results of its ranks."""
        # Registered as ended first: if this master dies, the next one ends the ranks that it finds.
        self._registry.end_attempt(spec.id)
        try:
            job = await self._attempts.start(spec, followed=False)
            return await job.wait(kind, len(spec.members), _WITHIN_S)
        finally:
            await self._attempts.end(spec.id)


def _probing(steps: Sequence[Sequence[ProbeFlow]], nics: Mapping[str, Nic]) -> JobSpec:
    """A job with a rank for each NIC, which makes its transfers one after the other."""
    probes = list(itertools.chain.from_iterable(steps))
    used = list(dict.fromkeys(nics[name] for probe in probes for name in (probe.source, probe.destination)))
    total_bytes = int(min(probe.rate_bps * probe.duration_s for probe in probes) / 8)
    transfers = [
        [{"source": flow.source, "destination": flow.destination, "source_port": flow.source_port} for flow in step]
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
