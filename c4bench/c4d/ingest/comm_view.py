"""A communicator: who its members are, and what they are doing in it."""

from c4bench.c4d.ingest.operations import Operations
from c4bench.model.telemetry import CommRecord, OpRecord


class CommView:
    """Its members are numbered within it; `seats` has their ranks in the job. `number` is its own in the job."""

    def __init__(self, record: CommRecord, ranks: dict[int, int], number: int, first: int, ops: Operations) -> None:
        self.record = record
        self.ranks = ranks
        self.hosts = {member.rank: member.host for member in record.members}
        # Members that have closed it: no record of theirs will ever say how their last operation ended.
        self.closed: set[int] = set()
        self.number = number
        self._first = first
        self._ops = ops

    def latest(self, member: int) -> OpRecord | None:
        """The newest record of a member."""
        return self._ops.newest(self._first + member)

    def uncompleted(self, member: int) -> OpRecord | None:
        """The first operation that a member has entered and not completed."""
        return None if member in self.closed else self._ops.uncompleted(self.number, self._first + member)

    def records_of(self, seq: int) -> dict[int, OpRecord]:
        """The records of an operation that not all members have completed, by member."""
        return self._ops.records_of(self.number, seq)
