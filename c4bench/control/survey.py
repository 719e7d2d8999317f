"""Learn the fabric by probing: every agent traces source ports from its NICs to the others'."""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from c4bench.c4p.atlas import Atlas
from c4bench.model.fabric import Host, Nic
from c4bench.wire.messages import ProbeAnswer, ProbeRequest

if TYPE_CHECKING:
    from c4bench.control.master import Master

_MAX_HOPS = 5
_SILENCE_S = 0.1


async def survey(master: "Master", hosts: Sequence[Host], source_ports: Sequence[int]) -> Atlas:
    """The atlas of all ordered pairs of NICs on different hosts, of the same plane where planes are told apart.

    Hosts probe side by side, each one destination at a time, which bounds the load on any link.
    """
    answers: dict[tuple[str, str, int], tuple[str | None, ...]] = {}
    nics = [nic for host in hosts for nic in host.nics]

    async def trace(host: Host) -> None:
        for source in host.nics:
            for destination in nics:
                if destination.host != host.name:
                    await _trace_pair(master, source, destination, tuple(source_ports), answers)

    await asyncio.gather(*(trace(host) for host in hosts))
    return Atlas.from_answers(answers)


async def _trace_pair(
    master: "Master",
    source: Nic,
    destination: Nic,
    source_ports: tuple[int, ...],
    answers: dict[tuple[str, str, int], tuple[str | None, ...]],
) -> None:
    request = ProbeRequest(source.index, destination.address, source_ports, _MAX_HOPS, _SILENCE_S)
    answer = await master.agent(source.host).call("probe", request, ProbeAnswer)
    for port, hops in answer.hops.items():
        answers[source.name, destination.name, port] = _links(hops, destination)


def _links(hops: tuple[str, ...], destination: Nic) -> tuple[str | None, ...]:
    """The directed links of a trace, each named by the address at its far end; None for one that stayed silent.

    The destination's RDMA stack drops a probe without a word, so the last silence of a trace is its arrival: the last
    link is then the one into the destination.
    """
    answered = [hop or None for hop in hops]
    while answered and answered[-1] is None:
        answered.pop()
    return (*answered, destination.address)
