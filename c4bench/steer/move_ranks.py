"""Moves the ranks of a job from hosts to their replacements."""

from collections.abc import Mapping, Sequence

import msgspec

from c4bench.model.fabric import Host, Nic
from c4bench.model.telemetry import Member


def move_ranks(
    members: Sequence[Member], nics: Sequence[Nic], moves: Mapping[str, Host | None]
) -> tuple[tuple[Member, ...], tuple[Nic, ...]]:
    """Members and NICs of a job after `moves` from host to host; without a replacement a host's ranks are removed.

    Ranks keep their order, so sums over the ring are added in the same order as before. A rank that used a host's n-th
    NIC uses the new host's n-th. If ranks are removed, the others are numbered from 0 again.
    """
    own = {host: [nic.name for nic in nics if nic.host == host] for host in moves}
    renamed: dict[str, str] = {}
    kept = [nic for nic in nics if nic.host not in moves]
    for host, spare in moves.items():
        if spare is not None:
            new = spare.nics[: len(own[host])]
            renamed |= {old: nic.name for old, nic in zip(own[host], new, strict=True)}
            kept += new
    remaining = [_moved(member, moves, renamed) for member in members if moves.get(member.host, member) is not None]
    return tuple(msgspec.structs.replace(member, rank=rank) for rank, member in enumerate(remaining)), tuple(kept)


def _moved(member: Member, moves: Mapping[str, Host | None], renamed: Mapping[str, str]) -> Member:
    spare = moves.get(member.host)
    if spare is None:
        return member
    return msgspec.structs.replace(member, host=spare.name, nics=tuple(renamed[nic] for nic in member.nics))
