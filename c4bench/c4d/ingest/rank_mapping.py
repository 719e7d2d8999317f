"""Which of the job's ranks each member of each communicator is.

A communicator numbers its members from 0, a process is known by its rank in the job. Where the communicator does not
say, they are matched by where they are: host and NICs. The largest communicator that agrees with the processes spans
the job and shows who uses which NICs; without one, each host's processes are counted off.
"""

from collections.abc import Iterable, Sequence

from c4bench.model.telemetry import CommRecord, Member

Nics = tuple[str, ...]
_Ranks = dict[int, int]  # member -> rank of the job

# Of the largest communicators so many are looked at for one that spans the job.
_CANDIDATES = 8


class RankMapping:
    """Maps all known members to ranks; later records may change the mapping, which `changes` counts.

    A member that is indistinguishable from others on its host gets a negative number, the same in all communicators.
    """

    def __init__(self) -> None:
        self._records: dict[str, CommRecord] = {}
        self._ranks: dict[str, _Ranks] = {}
        self._on_host: dict[str, dict[str, list[Member]]] = {}
        self._places: set[tuple[str, Nics]] = set()
        self._processes: dict[str, set[int]] = {}
        self._process_host: dict[int, str] = {}
        self._host_of: dict[int, str] = {}
        self._anchor: CommRecord | None = None
        self._anchored: dict[str, list[Member]] = {}
        self._placeholders: dict[tuple[str, Nics], int] = {}
        self.changes = 0

    def add_comm(self, record: CommRecord) -> _Ranks:
        """Map the members of a communicator; the returned mapping follows later changes."""
        self._records[record.comm] = record
        ranks = self._ranks.setdefault(record.comm, {})
        hosts = _by_host(record.members)
        for host, members in hosts.items():
            self._on_host.setdefault(host, {})[record.comm] = members
        self._places.update((member.host, member.nics) for member in record.members)
        before = self._anchor
        if before is not None and len(before.members) < len(self._places):
            self._anchor = None
        if self._anchor is None and self._spans(record):
            self._anchor = record
        self._map_hosts(before, hosts)
        return ranks

    def remove_comm(self, comm: str) -> None:
        """Forget a communicator; the ranks that it showed to be at their places stay known."""
        for host in _by_host(self._records.pop(comm).members):
            del self._on_host[host][comm]
        del self._ranks[comm]

    def add_process(self, rank: int, host: str) -> None:
        """Note a process of the job on `host`."""
        if self._process_host.get(rank) == host:
            return
        self._process_host[rank] = host
        self._processes.setdefault(host, set()).add(rank)
        before = self._anchor
        if before is not None and (_other_host(before, rank, host) or len(before.members) < len(self._process_host)):
            largest = sorted(self._records.values(), key=lambda record: -len(record.members))
            self._anchor = next((record for record in largest[:_CANDIDATES] if self._spans(record)), None)
        self._map_hosts(before, (host,))

    def host(self, rank: int) -> str:
        """The host of a rank; empty for one never seen."""
        return self._process_host.get(rank) or self._host_of.get(rank, "")

    def _map_hosts(self, before: CommRecord | None, touched: Iterable[str]) -> None:
        """Map the members on touched hosts; on all hosts if the anchor has changed."""
        self.changes += 1
        if self._anchor is not before:
            self._anchored = _by_host(self._anchor.members) if self._anchor else {}
            touched = list(self._on_host)
        for host in touched:
            self._map_host(host)

    def _spans(self, record: CommRecord) -> bool:
        """Whether a communicator holds the whole job, in the order of its ranks, as far as is known."""
        if len(record.members) < max(len(self._process_host), len(self._places)):
            return False
        return not any(_other_host(record, rank, host) for rank, host in self._process_host.items())

    def _map_host(self, host: str) -> None:
        """Map the members on one host."""
        ranks_of = self._ranks_by_nics(host)
        for comm, members in self._on_host.get(host, {}).items():
            taken: dict[Nics, int] = {}
            for member in members:
                place = taken.get(member.nics, 0)
                taken[member.nics] = place + 1
                ranks = ranks_of.get(member.nics, ())
                guess = ranks[place] if place < len(ranks) else self._placeholder(host, member.nics)
                rank = member.seat if member.seat >= 0 else guess
                self._ranks[comm][member.rank] = rank
                self._host_of.setdefault(rank, host)

    def _ranks_by_nics(self, host: str) -> dict[Nics, Sequence[int]]:
        if self._anchor is not None:
            anchored: dict[Nics, Sequence[int]] = {}
            for member in self._anchored.get(host, ()):
                anchored[member.nics] = (*anchored.get(member.nics, ()), member.rank)
            return anchored
        ranks = sorted(self._processes.get(host, ()))
        comms = self._on_host.get(host, {}).values()
        nics = sorted({member.nics for members in comms for member in members})
        if len(ranks) == 1 or len(nics) == 1:
            return dict.fromkeys(nics, ranks)
        # Launchers assign NICs in the order of ranks.
        return {own: (rank,) for own, rank in zip(nics, ranks, strict=True)} if len(nics) == len(ranks) else {}

    def _placeholder(self, host: str, nics: Nics) -> int:
        return self._placeholders.setdefault((host, nics), -1 - len(self._placeholders))


def _other_host(record: CommRecord, rank: int, host: str) -> bool:
    return rank >= len(record.members) or record.members[rank].host != host


def _by_host(members: Sequence[Member]) -> dict[str, list[Member]]:
    members_of: dict[str, list[Member]] = {}
    for member in members:
        members_of.setdefault(member.host, []).append(member)
    return members_of
