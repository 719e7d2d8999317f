"""Communicators of which each rank knows only itself, and hosts that say more than they can know."""

import msgspec
import pytest

from c4bench.attach.partial_comms import Assembler
from c4bench.model.telemetry import CommRecord, Member
from c4bench.model.window import EndName, HostNames, Window


def fragment(rank, host, size=3, job="train", seat=-1):
    """What a rank of a communicator knows."""
    last = () if rank == size - 1 else (Member(size - 1, "", ()),)
    return CommRecord("comm", job, (Member(rank, host, (), seat), *last))


def window(host, *records, sends=(), receives=()):
    """A window of a host whose ranks know these."""
    return Window(host, 0, 0.0, 1.0, HostNames(comms=records, sends=sends, receives=receives))


def hosts(assembled):
    """The hosts of the members of a window's one communicator."""
    (record,) = {record.comm: record for record in assembled.comms}.values()
    return [member.host for member in record.members]


def test_two_ranks_of_a_host_know_two_members():
    """Fragments of one host and of several join; what came first is whole as soon as the last has come."""
    assembler = Assembler()
    both = window("h0", fragment(0, "h0"), fragment(2, "h0"))
    assert assembler.assemble(both).comms == ()
    assert hosts(assembler.assemble(window("h1", fragment(1, "h1")))) == ["h0", "h1", "h0"]
    assert hosts(assembler.assemble(both)) == ["h0", "h1", "h0"]


@pytest.mark.parametrize(
    "lie",
    [
        window("h1", fragment(2, "h2")),
        window("h1", fragment(0, "h1")),
        window("h1", fragment(2, "h1", size=4)),
        window("h1", fragment(2, "h1", job="other")),
        window("h1", CommRecord("comm", "train", (Member(-1, "h1", ()), Member(2, "", ())))),
        window("h1", CommRecord("comm", "train", (Member(1 << 60, "h1", ()),))),
    ],
    ids=["another host", "rank twice", "another size", "another job", "no rank", "huge rank"],
)
def test_a_host_speaks_for_its_own_ranks(lie):
    """What a host says of others' ranks, of a rank that is known, or of one of another size is not believed."""
    assembler = Assembler()
    for rank in (0, 1):
        assembler.assemble(window(f"h{rank}", fragment(rank, f"h{rank}")))
    assert assembler.assemble(lie).comms == ()
    assert hosts(assembler.assemble(window("h2", fragment(2, "h2")))) == ["h0", "h1", "h2"]


def test_ends_get_their_nics_once_their_communicator_is_whole():
    """Sends and receives are named from sender to receiver; those with ranks that are not there are left out."""
    sends = (
        EndName("comm", 0, 1, "", "", 7),
        EndName("comm", 0, 9, "", "", 7),
        EndName("other", 0, 1, "", "", 7),
        None,
    )
    receives = (EndName("comm", 0, 2, "", "", 7), EndName("own", 0, 1, "h1/0", "h0/0", 3))
    assembler = Assembler()
    first = window("h0", fragment(0, "h0"), sends=sends, receives=receives)
    assert assembler.assemble(first).names.sends == (None, None, None, None)
    for rank in (1, 2):
        assembler.assemble(window(f"h{rank}", fragment(rank, f"h{rank}")))
    names = assembler.assemble(first).names
    assert names.sends == (EndName("comm", 0, 1, "h0/?", "h1/?", 7), None, None, None)
    assert names.receives == (EndName("comm", 0, 2, "h2/?", "h0/?", 7), receives[1])


@pytest.mark.parametrize(("given", "kept"), [((5, 4, 6), [5, 4, 6]), ((5, 5, 6), [-1] * 3), ((5, -1, 6), [-1] * 3)])
def test_seats_are_those_of_all_members_or_of_none(given, kept):
    """A process of several ranks has one number in its job, and some have none: C4D counts members then."""
    assembler = Assembler()
    windows = [window(f"h{rank}", fragment(rank, f"h{rank}", seat=seat)) for rank, seat in enumerate(given)]
    (record,) = [assembler.assemble(one) for one in windows][-1].comms
    assert [member.seat for member in record.members] == kept


def test_names_are_assembled_once():
    """Names that stay the same object stay so, since C4D looks them up again otherwise."""
    assembler = Assembler()
    one = window("h0", fragment(0, "h0", size=1 + 1))
    other = window("h1", fragment(1, "h1", size=1 + 1))
    assembler.assemble(one)
    assembler.assemble(other)
    first = assembler.assemble(one).names
    assert assembler.assemble(msgspec.structs.replace(one, sequence=1)).names is first
    assert hosts(assembler.assemble(one)) == ["h0", "h1"]


def test_an_ended_communicator_is_forgotten():
    """Once no host lists it, another one by its name begins from nothing."""
    assembler = Assembler()
    for rank in range(3):
        assembler.assemble(window(f"h{rank}", fragment(rank, f"h{rank}")))
    for rank in range(3):
        assert assembler.assemble(window(f"h{rank}")).comms == ()
    assert assembler.assemble(window("h9", fragment(0, "h9"))).comms == ()
    assert hosts(assembler.assemble(window("h8", fragment(1, "h8"), fragment(2, "h8")))) == ["h9", "h8", "h8"]
