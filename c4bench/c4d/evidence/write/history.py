"""All operations of a job out of its recorded telemetry, by communicator and rank."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from c4bench.c4d.ingest.rank_mapping import RankMapping
from c4bench.model.recording import Record
from c4bench.model.telemetry import CommRecord, OpRecord, RankRecord
from c4bench.model.window import Window

WORLD = "0"


class History(NamedTuple):
    """A job's communicators; its operations, `ops[rank]` in the order of calls; and its processes, up to `end_s`.

    `ranks` are the job's. `names` are those that PyTorch would give the communicators: `0` for all ranks.
    """

    job: str
    ranks: tuple[int, ...]
    comms: dict[str, CommRecord]
    seats: dict[str, dict[int, int]]
    names: dict[str, str]
    ops: dict[int, tuple[OpRecord, ...]]
    hosts: dict[int, str]
    processes: dict[int, RankRecord]
    end_s: float

    def ranks_of(self, comm: str) -> tuple[int, ...]:
        """The job's ranks in a communicator, in its order."""
        return tuple(self.seats[comm][member.rank] for member in self.comms[comm].members)

    def state(self, rank: int) -> str:
        """The last known state of a rank's process; `running` if nothing is known of it."""
        return self.processes[rank].state if rank in self.processes else "running"

    def dumping(self) -> Iterator[int]:
        """Ranks whose process could still write something."""
        return (rank for rank in self.ranks if self.state(rank) == "running")


def history(records: Iterable[Record]) -> History:
    """The history in the windows of one job. A later record of an operation replaces an earlier one."""
    mapping = RankMapping()
    comms: dict[str, CommRecord] = {}
    seats: dict[str, dict[int, int]] = {}
    found: dict[tuple[str, int, int], OpRecord] = {}
    processes: dict[int, RankRecord] = {}
    end_s = 0.0
    for window in records:
        if not isinstance(window, Window):
            continue
        end_s = max(end_s, window.end_s)
        for comm in window.comms:
            if comms.get(comm.comm) != comm:
                comms[comm.comm], seats[comm.comm] = comm, mapping.add_comm(comm)
        for process in window.ranks:
            mapping.add_process(process.rank, process.host)
            processes[process.rank] = process
        found |= {(op.comm, op.rank, op.seq): op for op in window.ops}
    ranks = tuple(sorted({rank for of in seats.values() for rank in of.values()}))
    ops: dict[int, list[OpRecord]] = {rank: [] for rank in ranks}
    for op in found.values():
        ops[seats[op.comm][op.rank]].append(op)
    ordered = {rank: tuple(sorted(mine, key=lambda op: (op.entered_s, op.seq))) for rank, mine in ops.items()}
    names = {
        name: WORLD if len(comm.members) == len(ranks) else str(number)
        for number, (name, comm) in enumerate(sorted(comms.items()), start=1)
    }
    job = next((comm.job for comm in comms.values()), "job")
    hosts = {rank: mapping.host(rank) for rank in ranks}
    return History(job, ranks, comms, seats, names, ordered, hosts, processes, end_s)
