"""The error of a failed collective, and how a rank's failures become it."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from c4bench.collective.rendezvous import Rendezvous
from c4bench.errors import C4Error
from c4bench.model.telemetry import Failure
from c4bench.verbs.errors import VerbsError


class CollectiveError(C4Error):
    """A collective failed. The communicator cannot be used any more: close it and make another.

    `peer` is the rank that was waited for, written to, or that failed first, -1 if there is no single one. `seq` is the
    operation's number, -1 outside operations. `status` is the completion status of a transport error, or

    `TIMEOUT`: the operation did not end in time; `ABSENT`: ranks did not join in time;
    `MISMATCH`: ranks called different operations; `ABORTED`: another rank failed first;
    `MEMORY`: a buffer cannot be allocated or registered; `DEVICE_FATAL`: a NIC is lost;
    `ENDED`: a rank of the same host, which data comes from or goes to, has ended;
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


class FailureGuard:
    """Guards one rank of a communicator. `broken`: the communicator is closed or has failed."""

    def __init__(self, comm: str, rank: int, rendezvous: Rendezvous) -> None:
        self._comm, self._rank, self._rendezvous = comm, rank, rendezvous
        self.broken = False

    def check(self, kind: str, seq: int) -> None:
        """Raise CollectiveError if the communicator is broken."""
        if self.broken:
            raise self._error(kind, seq, "this communicator is closed or has failed; make another", "BROKEN")

    @contextmanager
    def during(self, kind: str, seq: int = -1) -> Iterator[None]:
        """Raise CollectiveError for a device or memory error, and notify the other ranks of any error."""
        try:
            yield
        except (VerbsError, MemoryError) as error:
            status = "DEVICE" if isinstance(error, VerbsError) else "MEMORY"
            failure = self._error(kind, seq, str(error), status)
            self.abandon(failure)
            raise failure from error
        except BaseException as error:
            self.abandon(error)
            raise

    def abandon(self, error: BaseException) -> None:
        """Notify the other ranks why this one cannot continue, unless another rank failed first.

        The peer of an error from another communicator is not a rank of this one, and is not named.
        """
        status = error.status if isinstance(error, CollectiveError) else ""
        peer = error.peer if isinstance(error, CollectiveError) and error.comm == self._comm else -1
        if not (self.broken or status == "ABORTED"):
            with suppress(C4Error):
                rank = peer if status == "HOST_LOST" and peer >= 0 else self._rank
                failure = Failure(rank, str(error) or type(error).__name__, status, peer)
                self._rendezvous.fail(self._comm, failure, self._rank)
        self.broken = True

    def _error(self, kind: str, seq: int, message: str, status: str) -> CollectiveError:
        return CollectiveError(message, comm=self._comm, rank=self._rank, kind=kind, seq=seq, status=status)
