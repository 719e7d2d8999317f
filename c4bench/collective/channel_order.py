"""Which channels a communicator uses, and in which order each channel's ring passes the ranks. Pure.

Where each rank has a GPU, the ring of a channel passes all ranks of a host before it leaves it, and leaves it from the
GPU next to that channel's NIC, as NCCL's rings do. It enters the next host by the NIC of the same number, and so stays
on its rail; that NIC writes to the memory of the next GPU. Ranks without a GPU are in one order on all channels.
"""

from collections.abc import Sequence

import msgspec

from c4bench.model.telemetry import Gpu, Member


def inside(one: Member, other: Member) -> bool:
    """Whether two ranks reach each other inside their host, not through its NICs."""
    return one.host == other.host and bool(gpus_of((one, other)))


def used_channels(members: Sequence[Member], channels: int) -> tuple[int, ...]:
    """Those of so many channels that carry data: on hosts with GPUs the ones next to a member's GPU on every host.

    Where hosts share none, it is that of the first rank. Ranks of one host need no NIC, and use one channel.
    """
    gpus = gpus_of(members)
    if not gpus:
        return tuple(range(channels))
    own: dict[str, set[int]] = {}
    for member, gpu in zip(members, gpus, strict=True):
        own.setdefault(member.host, set()).add(gpu.nic)
    shared = [channel for channel in sorted(set.intersection(*own.values())) if channel < channels]
    if len(own) == 1:
        return tuple(shared[:1]) or (0,)
    return tuple(shared) or (min(gpus[0].nic, channels - 1),)


def ring_order(members: Sequence[Member], channel: int) -> tuple[int, ...]:
    """The ranks in the order of a channel's ring, from rank 0 on."""
    order = [rank for first, *others in chains(members, channel) for rank in (*others, first)]
    return from_rank(order, 0)


def chains(members: Sequence[Member], channel: int) -> list[list[int]]:
    """The ranks of each host, from the one whose GPU is next to the channel's NIC on; ranks without GPU are alone."""
    gpus = gpus_of(members)
    made = []
    for ranks in hosts(members):
        first = next((place for place, rank in enumerate(ranks) if gpus and gpus[rank].nic == channel), -1)
        made.append([*ranks[first:], *ranks[:first]])
    return made


def hosts(members: Sequence[Member]) -> list[list[int]]:
    """The ranks that reach each other inside their host; ranks without GPU are alone."""
    gpus = gpus_of(members)
    by_host: dict[str, list[int]] = {}
    for rank, member in enumerate(members):
        by_host.setdefault(member.host if gpus else str(rank), []).append(rank)
    return list(by_host.values())


def rails(members: Sequence[Member]) -> tuple[tuple[int, ...], ...]:
    """The ranks of each host in the order of their NICs; none where these are not the same on all of several hosts."""
    gpus = gpus_of(members)
    if not gpus or len(hosts(members)) < 2:
        return ()
    ordered = [sorted(ranks, key=lambda rank: gpus[rank].nic) for ranks in hosts(members)]
    nics = {tuple(gpus[rank].nic for rank in ranks) for ranks in ordered}
    equal = len(nics) == 1 and all(len(set(each)) == len(each) for each in nics)
    return tuple(map(tuple, ordered)) if equal else ()


def from_rank(order: Sequence[int], first: int) -> tuple[int, ...]:
    """The same ring, from rank `first` on."""
    at = order.index(first)
    return (*order[at:], *order[:at])


def pair_channel(members: Sequence[Member], source: int, channels: Sequence[int]) -> int:
    """The channel by which a rank with a GPU sends to any rank of another host: that of its own NIC, if it is used."""
    gpus = gpus_of(members)
    return gpus[source].nic if gpus and gpus[source].nic in channels else channels[0]


def has_gpus(members: Sequence[Member]) -> bool:
    """Whether every rank has a GPU of its own."""
    return bool(gpus_of(members))


def gpus_of(members: Sequence[Member]) -> list[Gpu]:
    """Every rank's GPU, or none where one has none."""
    gpus = [member.gpu for member in members if member.gpu is not msgspec.UNSET]
    return gpus if len(gpus) == len(members) else []
