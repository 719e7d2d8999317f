"""Communicators of which each rank knows only itself, and hosts that say more than they can know."""

import msgspec
import pytest

from c4bench.control.jobs.attached_names import AttachedNames, Seat
from c4bench.model.fabric import Nic
from c4bench.model.telemetry import CommRecord, Member
from c4bench.model.window import Caller, EndName, HostNames, Window

COMM = "train/comm"


def fragment(rank, host, size=3, job="train", seat=None):
    """What a rank of a communicator knows, with what its agent has added."""
    last = () if rank == size - 1 else (Member(size - 1, "", ()),)
    return CommRecord(COMM, job, (Member(rank, host, (), rank if seat is None else seat), *last))


def window(host, *records, callers=(), sends=(), receives=()):
    """A window of a host whose ranks know these."""
    return Window(host, 0, 0.0, 1.0, HostNames(comms=records, callers=callers, sends=sends, receives=receives))


@pytest.fixture
def names():
    """Ranks 0 to 2 are on hosts h0 to h2; h9 has ranks 5 and 6."""
    made = AttachedNames()
    for rank in range(3):
        made.place(f"h{rank}", {}, [Seat("train", rank)])
    made.place("h9", {}, [Seat("train", 5), Seat("train", 6)])
    return made


def hosts(translated):
    """The hosts of the members of a window's one communicator."""
    (record,) = {record.comm: record for record in translated.comms}.values()
    return [member.host for member in record.members]


def test_what_comes_first_is_whole_once_the_last_has_come(names):
    """Two ranks of one host and one of another join, by their own places."""
    both = window("h9", fragment(0, "h9", seat=5), fragment(2, "h9", seat=6))
    assert names.translate(both).comms == ()
    last = names.translate(window("h1", fragment(1, "h1")))
    assert hosts(last) == hosts(names.translate(both)) == ["h9", "h1", "h9"]
    assert [member.seat for member in last.comms[0].members] == [5, 1, 6]


@pytest.mark.parametrize(
    "lie",
    [
        window("h1", fragment(2, "h2")),
        window("h1", fragment(0, "h1", seat=1)),
        window("h1", fragment(1, "h1", seat=7)),
        window("h1", fragment(2, "h1", size=4, seat=1)),
        window("h1", fragment(2, "h1", job="other", seat=1)),
        window("h1", CommRecord(COMM, "train", (Member(-1, "h1", (), 1), Member(2, "", ())))),
        window("h1", CommRecord(COMM, "train", (Member(1 << 60, "h1", (), 1),))),
    ],
    ids=["another host", "rank twice", "no process", "another size", "another job", "no rank", "huge rank"],
)
def test_a_host_speaks_for_its_own_ranks(names, lie):
    """What a host says of others' ranks, of a rank that is known, or of one of another size is not believed."""
    for rank in (0, 2):
        names.translate(window(f"h{rank}", fragment(rank, f"h{rank}")))
    assert names.translate(lie).comms == ()
    assert hosts(names.translate(window("h1", fragment(1, "h1")))) == ["h0", "h1", "h2"]


def test_ends_get_the_hosts_of_their_ranks(names):
    """Ends that a library knows by ranks get their hosts; those with ranks that are not there are left out."""
    sends = (EndName(COMM, 0, 1, "", "", 7), EndName(COMM, 0, 9, "", "", 7), EndName("train/o", 0, 1, "", "", 7), None)
    receives = (EndName(COMM, 0, 2, "", "", 7), EndName("own/dp", 0, 1, "h1/0", "h0/0", 3))
    first = window("h0", fragment(0, "h0"), sends=sends, receives=receives)
    assert names.translate(first).names.sends == (None, None, None, None)
    for rank in (1, 2):
        names.translate(window(f"h{rank}", fragment(rank, f"h{rank}")))
    found = names.translate(first).names
    assert found.sends == (EndName(COMM, 0, 1, "h0/?", "h1/?", 7), None, None, None)
    assert found.receives == (EndName(COMM, 0, 2, "h2/?", "h0/?", 7), receives[1])


def test_data_of_queue_pairs_counts_once(names):
    """Where queue pairs show which NICs ranks use, what NCCL says of the same data is left out."""
    nics = [Nic(f"h{rank}", 0, "r", "n", f"10.{rank}.0.1", 1e10) for rank in range(2)]
    for rank, nic in enumerate(nics):
        names.place(f"h{rank}", {nic.address: nic}, [Seat("train", rank)])
    queue_pairs = CommRecord("train/verbs", "train", ())
    there = EndName("train/verbs", 0, -1, "10.0.0.1", "10.1.0.1", 17)
    called = EndName(COMM, 0, 1, "", "", 7)
    first = window("h0", fragment(0, "h0", size=2), queue_pairs, sends=(called, there))
    assert names.translate(first).names.sends == (None, None)
    names.translate(window("h1", fragment(1, "h1", size=2), queue_pairs, receives=(there._replace(rank=1),)))
    assert names.translate(first).names.sends == (None, None)  # the queue pairs' communicator is still forming
    assert hosts(msgspec.structs.replace(first, names=HostNames(names.translate(first).names.comms[:1]))) == [
        "h0",
        "h1",
    ]


def test_ranks_of_one_process_have_no_seats(names):
    """A process of several ranks has one number in its job: C4D counts members then."""
    both = window("h9", fragment(0, "h9", size=2, seat=5), fragment(1, "h9", size=2, seat=5))
    (record,) = {record.comm: record for record in names.translate(both).comms}.values()
    assert [member.seat for member in record.members] == [-1, -1]


def test_names_are_put_together_once(names):
    """Names that stay the same object stay so, since C4D looks them up again otherwise."""
    one = window("h0", fragment(0, "h0", size=2))
    other = window("h1", fragment(1, "h1", size=2))
    names.translate(one)
    names.translate(other)
    first = names.translate(one).names
    assert names.translate(msgspec.structs.replace(one, sequence=1)).names is first
    assert hosts(names.translate(one)) == ["h0", "h1"]


def test_a_communicator_that_comes_again_is_another_one(names):
    """Once no host lists it, one by its name begins from nothing, and its operations are not taken for the old ones."""
    callers = (Caller(COMM, 0),)
    for _ in range(2):
        names.translate(window("h0", fragment(0, "h0", size=2), callers=callers))
        names.translate(window("h1", fragment(1, "h1", size=2)))
        last = names.translate(window("h0", fragment(0, "h0", size=2), callers=callers)).names
        for rank in range(2):
            assert names.translate(window(f"h{rank}")).comms == ()
    assert [record.comm for record in last.comms] == [f"{COMM}#2"]
    assert last.callers == (Caller(f"{COMM}#2", 0),)
    names.translate(window("h0", fragment(0, "h0", size=2)))
    names.place("h0", {}, [])
    assert names.translate(window("h1", fragment(1, "h1", size=2))).comms == ()
