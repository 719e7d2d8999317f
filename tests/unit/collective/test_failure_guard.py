"""How a rank notifies the others of a communicator when it fails."""

from c4bench.collective.errors import CollectiveError, FailureGuard
from c4bench.model.telemetry import Failure


class Told:
    """A rendezvous that remembers the failures it is told."""

    def __init__(self):
        self.failures = []

    def fail(self, comm, failure, _sender):
        self.failures.append((comm, failure))


def notified(error):
    """What rank 2 of communicator `dp` tells of an error."""
    rendezvous = Told()
    FailureGuard("dp", 2, rendezvous).abandon(error)
    return rendezvous.failures


def unanswered(comm, rank, peer, status="RETRY_EXC_ERR"):
    """The error of a rank of `comm` that could not reach another one."""
    return CollectiveError("no answer", comm=comm, rank=rank, kind="all_reduce", seq=3, peer=peer, status=status)


def test_whom_it_could_not_reach_is_told_in_the_communicators_own_ranks():
    """An error of another communicator names no rank of this one, since its numbers differ."""
    own, other = unanswered("dp", 2, 5), unanswered("tp", 0, 1)
    assert notified(own) == [("dp", Failure(2, str(own), "RETRY_EXC_ERR", 5))]
    assert notified(other) == [("dp", Failure(2, str(other), "RETRY_EXC_ERR", -1))]


def test_a_lost_host_is_told_of_as_its_own_rank():
    """A HOST_LOST error blames the lost rank; one from another communicator blames only the rank that reports it."""
    assert [failure.rank for _, failure in notified(unanswered("dp", 2, 5, "HOST_LOST"))] == [5]
    assert [failure.rank for _, failure in notified(unanswered("tp", 0, 1, "HOST_LOST"))] == [2]
