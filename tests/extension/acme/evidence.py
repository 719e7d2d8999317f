"""A format of files that another tool leaves of a job."""

from c4bench import EvidenceFormat, MemberEvidence, Reading, SourceFile


def read(data: bytes, file: str) -> Reading:
    """A line for each rank: `acme RANK CALLS`."""
    lines = [line.split() for line in data.decode().splitlines()]
    members = [MemberEvidence(file, "acme log", "world", int(rank), last_seq=int(calls)) for _, rank, calls in lines]
    ranks = tuple(member.rank for member in members)
    return Reading(tuple(members), (SourceFile(file, "acme log", "1", ranks),), ranks=len(ranks))


LOG = EvidenceFormat("acme log", lambda head, name: head.startswith(b"acme "), read)
