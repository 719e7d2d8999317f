"""Members of communicators are matched with the job's ranks by where they are."""

from c4bench.c4d.observe.members import RankMapping
from c4bench.model.telemetry import CommRecord, Member


def _comm(name, places):
    return CommRecord(name, "job", tuple(Member(i, host, nics) for i, (host, nics) in enumerate(places)))


_WORLD = [(f"h{rank // 2}", (f"h{rank // 2}/{rank % 2}",)) for rank in range(6)]


def test_spanning_communicator_shows_who_uses_which_nic():
    """A sub-communicator's members get the ranks that the job's communicator has at their places."""
    seats = RankMapping()
    data = seats.add_comm(_comm("data", [_WORLD[5], _WORLD[1]]))
    assert all(rank < 0 for rank in seats.add_comm(_comm("other", [_WORLD[0], _WORLD[3]])).values())
    seats.add_comm(_comm("world", _WORLD))
    assert data == {0: 5, 1: 1}
    assert seats.host(5) == "h2"


def test_without_a_spanning_communicator_processes_are_counted_off():
    """Launchers give NICs out in the order of ranks."""
    seats = RankMapping()
    first = seats.add_comm(_comm("data.0", [_WORLD[0], _WORLD[2]]))
    second = seats.add_comm(_comm("data.1", [_WORLD[1], _WORLD[3]]))
    for rank in range(4):
        seats.add_process(rank, f"h{rank // 2}")
    assert (first, second) == ({0: 0, 1: 2}, {0: 1, 1: 3})


def test_reversed_communicator_does_not_number_the_job():
    """A communicator of all ranks in another order is told from the job's own by where the processes are."""
    seats = RankMapping()
    hosts = [(f"h{rank}", (f"h{rank}/0",)) for rank in range(3)]
    backwards = seats.add_comm(_comm("backwards", hosts[::-1]))
    for rank in range(3):
        seats.add_process(rank, f"h{rank}")
    assert backwards == {0: 2, 1: 1, 2: 0}


def test_ranks_that_share_nics_keep_their_order():
    """Where several ranks use the same NICs, a communicator of all of them has them in order."""
    seats = RankMapping()
    seats.add_comm(_comm("world", [("h0", ("h0/0",))] * 3 + [("h1", ("h1/0",))]))
    assert seats.add_comm(_comm("local", [("h0", ("h0/0",))] * 3)) == {0: 0, 1: 1, 2: 2}


def test_members_that_say_their_seat_need_no_guess():
    """Two ranks of one host share its NIC: in a communicator without the first of them only the seat can tell."""
    seats = RankMapping()
    world = CommRecord("world", "job", tuple(Member(rank, "h0", ("h0/0",), rank) for rank in range(2)))
    alone = CommRecord("data", "job", (Member(0, "h0", ("h0/0",), 1), Member(1, "h1", ("h1/0",), 3)))
    seats.add_comm(world)
    assert seats.add_comm(alone) == {0: 1, 1: 3}
