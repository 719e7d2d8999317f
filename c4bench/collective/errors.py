"""How a collective fails."""

from c4bench.errors import C4Error


class CollectiveError(C4Error):
    """A collective cannot go on. The communicator is broken afterwards: close it and make another.

    `peer` is the rank that was waited for, written to, or that failed first, -1 where there is no single one; `seq` is
    the operation's number, -1 outside operations. `status` is the completion status of a transport error, or

    `TIMEOUT`: the operation did not end in time; `ABSENT`: ranks did not come to connect;
    `MISMATCH`: ranks called different operations; `ABORTED`: another rank failed first;
    `MEMORY`: a buffer cannot be had or registered; `DEVICE_FATAL`: a NIC is lost;
    `HOST_LOST`: no NIC of rank `peer`'s host can be reached, or of one's own host where that is this rank;
    `DEVICE`: a NIC cannot be opened or used; `BROKEN`: an earlier operation failed.
    """

    def __init__(
        self, message: str, *, comm: str, rank: int, kind: str, seq: int = -1, peer: int = -1, status: str = ""
    ) -> None:
        operation = kind if seq < 0 else f"{kind} #{seq}"
        super().__init__(f"rank {rank} of communicator {comm}, {operation}: {message}")
        self.message = message
        self.comm = comm
        self.rank = rank
        self.kind = kind
        self.seq = seq
        self.peer = peer
        self.status = status

    def seen_by(self, comm: str, rank: int, kind: str, peer: int) -> "CollectiveError":
        """The same failure of a part of communicator `comm`, in that communicator's ranks."""
        return CollectiveError(
            self.message, comm=comm, rank=rank, kind=kind, seq=self.seq, peer=peer, status=self.status
        )
