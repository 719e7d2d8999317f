"""The error of a failed collective."""

from c4bench.errors import C4Error


class CollectiveError(C4Error):
    """A collective failed. The communicator cannot be used any more: close it and make another.

    `peer` is the rank that was waited for, written to, or that failed first, -1 if there is no single one. `seq` is the
    operation's number, -1 outside operations. `status` is the completion status of a transport error, or

    `TIMEOUT`: the operation did not end in time; `ABSENT`: ranks did not join in time;
    `MISMATCH`: ranks called different operations; `ABORTED`: another rank failed first;
    `MEMORY`: a buffer cannot be allocated or registered; `DEVICE_FATAL`: a NIC is lost;
    `HOST_LOST`: no NIC of rank `peer`'s host can be reached (`peer` may be this rank);
    `DEVICE`: a NIC cannot be opened or used; `BROKEN`: an earlier operation failed.

    Where another rank failed first, `cause` is the status of its failure.
    """

    def __init__(
        self,
        message: str,
        *,
        comm: str,
        rank: int,
        kind: str,
        seq: int = -1,
        peer: int = -1,
        status: str = "",
        cause: str = "",
    ) -> None:
        operation = kind if seq < 0 else f"{kind} #{seq}"
        super().__init__(f"rank {rank} of communicator {comm}, {operation}: {message}")
        self.message = message
        self.comm = comm
        self.rank = rank
        self.kind = kind
        self.seq = seq
        self.peer = peer
        self.status, self.cause = status, cause

    def seen_by(self, comm: str, rank: int, kind: str, peer: int) -> "CollectiveError":
        """The same failure as an error of communicator `comm`, of which this one's is a part."""
        return CollectiveError(
            self.message, comm=comm, rank=rank, kind=kind, seq=self.seq, peer=peer, status=self.status, cause=self.cause
        )
