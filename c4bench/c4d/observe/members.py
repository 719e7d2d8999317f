"""The members of a job's communicators, one row each, and the state of their ranks.

Which of the job's ranks each member of each communicator is. A communicator numbers its members from 0, a process is
known by its rank in the job. Where the communicator does not say, they are matched by where they are: host and NICs.
The largest communicator that agrees with the processes spans the job and shows who uses which NICs; without one, each
host's processes are counted off.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from c4bench.c4d.observe.batch import FOREIGN, UNKNOWN, Batch, HostRows
from c4bench.c4d.observe.clocks import HostClocks
from c4bench.c4d.observe.columns import NEVER, Bools, Floats, Index, Ints, Table
from c4bench.c4d.observe.record_validator import RecordValidator
from c4bench.model.telemetry import CommRecord, Member

Nics = tuple[str, ...]
_Ranks = dict[int, int]  # member -> rank of the job


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
        self._placeholders = Index()
        self.changes = 0

    def add_comm(self, record: CommRecord) -> _Ranks:
        """Map the members of a communicator; the returned mapping follows later changes."""
        self._records[record.comm] = record
        ranks = self._ranks.setdefault(record.comm, {})
        hosts = _by_host(record.members)
        for host, members in hosts.items():
            self._on_host.setdefault(host, {})[record.comm] = members
            self._places.update((host, member.nics) for member in members)
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
            largest_first = sorted(self._records.values(), key=lambda record: -len(record.members))
            self._anchor = next(filter(self._spans, largest_first), None)
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
                guess = ranks[place] if place < len(ranks) else -1 - self._placeholders.open((host, member.nics))
                rank = member.seat if member.seat >= 0 else guess
                self._ranks[comm][member.rank] = rank
                self._host_of.setdefault(rank, host)

    def _ranks_by_nics(self, host: str) -> Mapping[Nics, Sequence[int]]:
        anchored: dict[Nics, list[int]] = {}
        for member in self._anchored.get(host, ()):
            anchored.setdefault(member.nics, []).append(member.rank)
        if self._anchor is not None:
            return anchored
        ranks = sorted(self._processes.get(host, ()))
        comms = self._on_host.get(host, {}).values()
        nics = sorted({member.nics for members in comms for member in members})
        if len(ranks) == 1 or len(nics) == 1:
            return dict.fromkeys(nics, ranks)
        # Launchers assign NICs in the order of ranks.
        return {own: (rank,) for own, rank in zip(nics, ranks, strict=True)} if len(nics) == len(ranks) else {}


def _other_host(record: CommRecord, rank: int, host: str) -> bool:
    return rank >= len(record.members) or record.members[rank].host != host


def _by_host(members: Sequence[Member]) -> dict[str, list[Member]]:
    members_of: dict[str, list[Member]] = {}
    for member in members:
        members_of.setdefault(member.host, []).append(member)
    return members_of


class Members:
    """Rows of `table` are members, by (communicator, number in it); those of one communicator lie together.

    `comms` has a row for each communicator, by its number, and `ranks` one for each rank of the job. Times are the
    hosts' own. `callers` are the rows of the members that hosts number.
    """

    def __init__(self, mapping: RankMapping) -> None:
        self.table = Table(comm=0, place=0, host=0, host_name=None, acted_s=NEVER)
        self.comms = Table(first=0, size=0, name=None)
        self.ranks = Table(number=0, acted_s=NEVER, event_s=float("nan"))
        self.callers = HostRows("callers", lambda caller: self.row(*caller))
        self._hosts, self._numbers, self._rank_rows = Index(), Index(), Index()
        self._mapping = mapping
        self._ranks_of_comms: list[dict[int, int]] = []
        # Numbers of removed communicators by size.
        self._free: dict[int, list[int]] = {}
        self._rank_rows_of_members: Ints = np.empty(0, np.int64)
        self._mapped_at = -1

    def add_comm(self, record: CommRecord, ranks: dict[int, int]) -> tuple[int, int]:
        """A communicator, whose members' ranks `ranks` follows: its number, and the row of its first member."""
        size = len(record.members)
        number = self._numbers[record.comm] = self._number(size)
        self.comms["name"][number], self._ranks_of_comms[number] = record.comm, ranks
        self._mapped_at = -1
        first = int(self.comms["first"][number])
        own = slice(first, first + size)
        self.table["comm"][own], self.table["place"][own] = number, np.arange(size)
        self.table["host_name"][own] = hosts = [member.host for member in record.members]
        self.table["host"][own] = [self._hosts.open(host) for host in hosts]
        return number, first

    def _number(self, size: int) -> int:
        """A number for a communicator, with rows for its members: those of a removed one of its size, or new ones."""
        if self._free.get(size):
            return self._free[size].pop()
        number = self.comms.add()
        self._ranks_of_comms.append({})
        self.comms["first"][number], self.comms["size"][number] = self.table.add(size), size
        return number

    def remove_comm(self, comm: str) -> tuple[int, int]:
        """Forget a communicator; return its number and its size."""
        number = self._numbers.pop(comm)
        first, size = self.rows_of(number)
        self.table.clear(slice(first, first + size), "acted_s")
        self._free.setdefault(size, []).append(number)
        return number, size

    def rows_of(self, number: int) -> tuple[int, int]:
        """The row of the first member of a communicator, and how many it has."""
        return int(self.comms["first"][number]), int(self.comms["size"][number])

    def row(self, comm: str, member: int) -> int:
        """The row of a member, FOREIGN or UNKNOWN."""
        if comm not in self._numbers:
            return UNKNOWN
        first, size = self.rows_of(self._numbers[comm])
        return first + member if 0 <= member < size else FOREIGN

    def caller(self, row: int) -> tuple[str, int]:
        """The communicator of a member, and its number in it."""
        return self.comms["name"][self.table["comm"][row]], int(self.table["place"][row])

    def own(
        self, reason: str, rows: Ints, members: Ints, batch: Batch, windows: Ints, validator: RecordValidator
    ) -> Ints:
        """Which records' `rows` are known and whose members are on the hosts of their windows.

        Those of members on other hosts, and of such as there are not, are counted as dropped for this reason.
        """
        which = np.flatnonzero(rows > UNKNOWN)
        writers = self._hosts.rows(batch.hosts, len(batch.hosts))[windows]
        own = (rows >= 0) & (self.table["host"][members] == writers)
        return validator.filter(reason, which, own[which], batch.hosts, windows)

    def rank_rows(self) -> Ints:
        """Each member's row in `ranks`, as they are mapped now."""
        if self._mapped_at != self._mapping.changes:
            ranks = [rank for mapped in self._ranks_of_comms for _, rank in sorted(mapped.items())]
            rows = np.asarray([self._rank_rows.open(rank) for rank in ranks], np.int64)
            self.ranks.add(len(self._rank_rows) - self.ranks.count)
            self.ranks["number"][rows] = ranks
            self._rank_rows_of_members, self._mapped_at = rows, self._mapping.changes
        return self._rank_rows_of_members

    def rank_of(self, rows: Ints) -> Ints:
        """The ranks in the job that members are."""
        ranks: Ints = self.ranks["number"][self.rank_rows()[rows]]
        return ranks

    def acted_s(self, rank: int, default_s: float = NEVER) -> float:
        """When a rank last entered or left an operation or had a message acknowledged."""
        at_s = float(self.ranks["acted_s"][self._rank_rows[rank]]) if rank in self._rank_rows else NEVER
        return at_s if at_s > NEVER else default_s

    def note_acts(self, rows: Ints, acted_s: Floats) -> None:
        """Note that members acted at these times, which may be known already."""
        np.maximum.at(self.ranks["acted_s"], self.rank_rows()[rows], acted_s)
        np.maximum.at(self.table["acted_s"], rows, acted_s)

    def progress_s(self, clocks: HostClocks, bare: Bools) -> Floats:
        """When any member of each communicator, by its number, last acted, on the master's clock; -inf for never.

        What a rank does in communicators that are `bare` of operations counts in all of its communicators.
        """
        if not self.table.count:
            return self.table.used("acted_s")
        offsets_s = np.fromiter(map(clocks.offset_s, self._hosts), np.float64)
        acted_s = self.table.used("acted_s") + offsets_s[self.table.used("host")]
        if bare.any():
            ranks, elsewhere = self.rank_rows(), bare[self.table.used("comm")]
            of_ranks = np.full(self.ranks.count, NEVER)
            np.maximum.at(of_ranks, ranks[elsewhere], acted_s[elsewhere])
            acted_s = np.maximum(acted_s, of_ranks[ranks])
        latest_s: Floats = np.maximum.reduceat(acted_s, self.comms.used("first"))
        return latest_s
