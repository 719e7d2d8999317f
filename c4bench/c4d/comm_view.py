"""What is known of a communicator: the newest record of every member, and its recent operations."""

from collections.abc import Iterator

import msgspec

from c4bench.model.telemetry import CommRecord, OpRecord

_OPS_KEPT = 128


class OpSample(msgspec.Struct, frozen=True):
    """A finished operation as its ranks saw it: who was inside how long, after how much computing (None: unseen)."""

    comm: str
    seq: int
    duration_s: dict[int, float]
    gap_s: dict[int, float | None]
    entered_s: dict[int, float]


class CommView:
    """A communicator's recent operations. Its members are numbered within it; `seats` has their ranks in the job."""

    def __init__(self, record: CommRecord, seats: dict[int, int]) -> None:
        self.record = record
        self.seats = seats
        self.hosts = {member.rank: member.host for member in record.members}
        self.latest: dict[int, OpRecord] = {}
        # Members that have closed it: no record of theirs will ever say how their last operation ended.
        self.left: set[int] = set()
        self._finished: dict[int, int] = {}
        self._ops: dict[int, dict[int, OpRecord]] = {}
        self._gaps: dict[tuple[int, int], float | None] = {}
        self._judged = -1

    def put(self, op: OpRecord, gap_s: float | None) -> None:
        """Keep `op`; `gap_s` is the computing before it, given when it is first seen."""
        self._gaps.setdefault((op.seq, op.rank), gap_s)
        if op.seq > self._judged:
            self._ops.setdefault(op.seq, {})[op.rank] = op
        latest = self.latest.get(op.rank)
        if latest is None or op.seq >= latest.seq:
            self.latest[op.rank] = op
        if op.finished_s > 0.0:
            self._finished[op.rank] = max(op.seq, self._finished.get(op.rank, -1))
        while len(self._ops) > _OPS_KEPT:
            self._forget(min(self._ops))

    def seen(self, op: OpRecord) -> bool:
        """Whether this rank's record of this operation was seen before, running or finished."""
        return (op.seq, op.rank) in self._gaps or op.seq <= self._judged

    def uncompleted(self, rank: int) -> OpRecord | None:
        """The first operation that `rank` has entered and not completed; operations of a communicator end in order."""
        latest = self.latest.get(rank)
        if latest is None or latest.finished_s > 0.0 or rank in self.left:
            return None
        done = self.completed(rank)
        open_seqs = [seq for seq, ops in self._ops.items() if seq > done and rank in ops]
        return self._ops[min(open_seqs)][rank] if open_seqs else latest

    def completed(self, rank: int) -> int:
        """The latest operation that `rank` has completed; -1 before the first."""
        return self._finished.get(rank, -1)

    def at(self, seq: int) -> dict[int, OpRecord]:
        """The records of an operation that not all members have completed, by member."""
        return self._ops.get(seq, {})

    def finished(self) -> Iterator[OpSample]:
        """Operations that every member has finished, each once, in order."""
        for seq in sorted(self._ops):
            ops = self._ops[seq]
            if len(ops) == len(self.hosts) and all(op.finished_s > 0 for op in ops.values()):
                yield self._sample(seq, ops)
                self._forget(seq)
                self._judged = max(self._judged, seq)

    def _sample(self, seq: int, ops: dict[int, OpRecord]) -> OpSample:
        return OpSample(
            self.record.comm,
            seq,
            {rank: op.finished_s - op.entered_s for rank, op in ops.items()},
            {rank: self._gaps.get((seq, rank)) for rank in ops},
            {rank: op.entered_s for rank, op in ops.items()},
        )

    def _forget(self, seq: int) -> None:
        del self._ops[seq]
        for rank in self.hosts:
            self._gaps.pop((seq, rank), None)
