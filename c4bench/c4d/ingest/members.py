"""The members of a job's communicators, one row each, and the state of their ranks.

Which of the job's ranks each member of each communicator is. A communicator numbers its members from 0, a process is
known by its rank in the job. Where the communicator does not say, they are matched by where they are: host and NICs.
The largest communicator that agrees with the processes spans the job and shows who uses which NICs; without one, each
host's processes are counted off.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from c4bench.c4d.columns import NEVER, Bools, Floats, Index, Ints, Table
from c4bench.c4d.ingest.batch import FOREIGN, UNKNOWN, Batch, HostRows
from c4bench.c4d.ingest.clocks import HostClocks
from c4bench.model.telemetry import CommRecord, Member
from c4bench.model.window import Caller

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


class Members:
    """Rows of `table` are members, by (communicator, number in it); those of one communicator lie together.

    `acts` has a row for each (communicator, host), `ranks` one for each rank of the job. Times are the hosts' own.
    `callers` are the rows of the members that hosts number.
    """

    def __init__(self, mapping: RankMapping) -> None:
        self.table = Table(comm=0, place=0, host=0, acts=0)
        self.acts = Table(comm=0, host=0, moved_s=NEVER)
        self.ranks = Table(number=0, moved_s=NEVER, acted_s=NEVER, event_s=float("nan"))
        self._hosts = Index()
        self._host_names: list[str] = []
        self._numbers = Index()
        self._comms = Table(first=0, size=0)
        self._mapping = mapping
        self._ranks_of_comms: list[dict[int, int]] = []
        # Numbers of removed communicators by size, and rows of `acts` of such.
        self._free: dict[int, list[int]] = {}
        self._free_acts: list[int] = []
        self._rank_rows = Index()
        self._rank_rows_of_members: Ints = np.empty(0, np.int64)
        self._mapped_at = -1
        self.callers = HostRows("callers", self._caller)

    def add_comm(self, record: CommRecord, ranks: dict[int, int]) -> tuple[int, int]:
        """A communicator, whose members' ranks `ranks` follows: its number, and the row of its first member."""
        number = self._numbers[record.comm] = self._number(len(record.members))
        self._ranks_of_comms[number] = ranks
        self._mapped_at = -1
        first = int(self._comms["first"][number])
        acts: dict[int, int] = {}
        for row, member in enumerate(record.members, start=first):
            host = self._host(member.host)
            if host not in acts:
                acts[host] = self._free_acts.pop() if self._free_acts else self.acts.add()
                self.acts["comm"][acts[host]], self.acts["host"][acts[host]] = number, host
            for name, value in (("comm", number), ("place", member.rank), ("host", host), ("acts", acts[host])):
                self.table[name][row] = value
        return number, first

    def _number(self, size: int) -> int:
        """A number for a communicator, with rows for its members: those of a removed one of its size, or new ones."""
        if self._free.get(size):
            return self._free[size].pop()
        number = self._comms.add()
        self._ranks_of_comms.append({})
        self._comms["first"][number], self._comms["size"][number] = self.table.add(size), size
        return number

    def remove_comm(self, comm: str) -> tuple[int, int]:
        """Forget a communicator; return its number and its size."""
        number = self._numbers.pop(comm)
        first, size = int(self._comms["first"][number]), int(self._comms["size"][number])
        acts = np.unique(self.table["acts"][first : first + size])
        self.acts["moved_s"][acts] = NEVER
        self._free_acts += acts.tolist()
        self._free.setdefault(size, []).append(number)
        return number, size

    def _host(self, name: str) -> int:
        if name not in self._hosts:
            self._hosts[name] = len(self._host_names)
            self._host_names.append(name)
        return self._hosts[name]

    def row(self, comm: str, member: int) -> int:
        """The row of a member, FOREIGN or UNKNOWN."""
        number = self._numbers.get(comm, UNKNOWN)
        if number == UNKNOWN:
            return UNKNOWN
        return int(self._comms["first"][number]) + member if 0 <= member < self._comms["size"][number] else FOREIGN

    def _caller(self, caller: Caller) -> int:
        return self.row(*caller)

    def host(self, row: int) -> str:
        """The host that a member is on."""
        return self._host_names[int(self.table["host"][row])]

    def on_host(self, rows: Ints, batch: Batch, windows: Ints) -> Bools:
        """Whether members are on the hosts that wrote these windows."""
        writers = self._hosts.rows(batch.hosts, len(batch.hosts))[windows]
        here: Bools = self.table["host"][rows] == writers
        return here

    def rank_rows(self) -> Ints:
        """Each member's row in `ranks`, as they are mapped now."""
        if self._mapped_at != self._mapping.changes:
            ranks = [rank for mapped in self._ranks_of_comms for _, rank in sorted(mapped.items())]
            self._rank_rows_of_members = np.asarray([self._rank_row(rank) for rank in ranks], np.int64)
            self._mapped_at = self._mapping.changes
        return self._rank_rows_of_members

    def rank_of(self, rows: Ints) -> Ints:
        """The ranks in the job that members are."""
        ranks: Ints = self.ranks["number"][self.rank_rows()[rows]]
        return ranks

    def _rank_row(self, rank: int) -> int:
        if rank not in self._rank_rows:
            self._rank_rows[rank] = self.ranks.add()
            self.ranks["number"][self._rank_rows[rank]] = rank
        return self._rank_rows[rank]

    def moved_s(self, rank: int, default_s: float = NEVER) -> float:
        """End of the last window in which anything of a rank changed."""
        return self._of(rank, "moved_s", default_s)

    def acted_s(self, rank: int, default_s: float = NEVER) -> float:
        """When a rank last entered or left an operation or had a message acknowledged."""
        return self._of(rank, "acted_s", default_s)

    def _of(self, rank: int, name: str, default_s: float) -> float:
        at_s = float(self.ranks[name][self._rank_rows[rank]]) if rank in self._rank_rows else NEVER
        return at_s if at_s > NEVER else default_s

    def note_progress(self, rows: Ints, acted_s: Floats, ends_s: Floats) -> None:
        """Note that members acted at these times, by windows that ended at `ends_s`."""
        self.ranks["moved_s"][self.rank_rows()[rows]] = ends_s
        self.note_acts(rows, acted_s)

    def note_acts(self, rows: Ints, acted_s: Floats) -> None:
        """Note that members acted at these times, which may be known already."""
        np.maximum.at(self.ranks["acted_s"], self.rank_rows()[rows], acted_s)
        np.maximum.at(self.acts["moved_s"], self.table["acts"][rows], acted_s)

    def progress_s(self, clocks: HostClocks) -> Floats:
        """When any member of each communicator, by its number, last acted, on the master's clock; -inf for never."""
        latest_s = np.full(self._comms.count, NEVER)
        acts = self.acts
        moved_s = acts.used("moved_s") + offsets_s(clocks, self._host_names)[acts.used("host")]
        np.maximum.at(latest_s, acts.used("comm"), moved_s)
        return latest_s


def offsets_s(clocks: HostClocks, hosts: Iterable[str]) -> Floats:
    """What to add to times of these hosts to have them on the master's clock."""
    return np.fromiter(map(clocks.offset_s, hosts), np.float64)
