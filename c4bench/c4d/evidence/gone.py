"""Ranks and processes that a source itself reports as dead or as not answering, put together where they share hosts."""

from c4bench.c4d.evidence.join import JobEvidence
from c4bench.model.evidence import MemberEvidence

_SHOWN = 8


def gone_members(job: JobEvidence) -> tuple[dict[str, list[MemberEvidence]], list[MemberEvidence]]:
    """The hosts of which all processes are gone, as far as is known, with these; and all others that are gone.

    A rank of which another source knows what it called is none of them. Where ranks of a host are known by number and
    its processes by themselves, which is which is not known, and the others are the ranks.
    """
    known = {rank for comm in job.comms.values() for rank in comm.members}
    found = {(one.rank, one.host, one.pid): one for one in job.gone if one.rank not in known}
    gone = [one for _, one in sorted(found.items())]
    by_host: dict[str, list[MemberEvidence]] = {}
    for one in gone:
        by_host.setdefault(one.host, []).append(one)
    alive = {job.hosts.get(rank) for rank in known}
    whole = {host: ones for host, ones in by_host.items() if host and host not in alive and _is_whole(job, ones)}
    by_rank = {one.host for one in gone if one.rank >= 0 > one.pid}
    left = [one for one in gone if one.host not in whole and not (one.rank < 0 and one.host in by_rank)]
    return whole, left


def _is_whole(job: JobEvidence, gone: list[MemberEvidence]) -> bool:
    """Whether these are all processes of a host, of several."""
    count = how_many(gone)
    return count > 1 and (not job.per_host or count >= job.per_host)


def how_many(gone: list[MemberEvidence]) -> int:
    """How many processes these are; of some only the rank may be known, and of the same the process id by itself."""
    alone = sum(one.rank < 0 for one in gone)
    return max(len(gone) - alone, sum(one.pid >= 0 for one in gone))


def process_words(one: MemberEvidence) -> str:
    """Which process a source tells of: its id, its host, its GPU, and its rank in a communicator, as far as known."""
    rank = f"rank {one.rank}, " if one.rank >= 0 else ""
    process = f"process {one.pid}" if one.pid >= 0 else "a process"
    gpu = f", GPU {one.gpu}" if one.gpu >= 0 else ""
    return f"{rank}{process} on {one.host or 'an unknown host'}{gpu}"


def places_words(gone: list[MemberEvidence]) -> str:
    """Several of these, cut where they are many."""
    return "; ".join(process_words(one) for one in gone[:_SHOWN]) + (
        f" and {len(gone) - _SHOWN} more" if len(gone) > _SHOWN else ""
    )
