"""How a collective fails."""

from c4bench.errors import C4Error


class CollectiveError(C4Error):
    """A collective cannot go on. The communicator is broken afterwards: close it and make another.

    `peer` is the rank that was waited for or written to, -1 where there is no single one; `status` is the completion
    status of a transport error, `TIMEOUT`, or `MISMATCH`.
    """

    def __init__(
        self, message: str, *, comm: str, rank: int, kind: str, seq: int, peer: int = -1, status: str = ""
    ) -> None:
        where = f"rank {rank} of communicator {comm}, {kind} #{seq}"
        super().__init__(f"{where}: {message}")
        self.comm = comm
        self.rank = rank
        self.kind = kind
        self.seq = seq
        self.peer = peer
        self.status = status
