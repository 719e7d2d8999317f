"""Windows on the wire: names once, numbers in every window, and nothing believed of what cannot be."""

import tracemalloc

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from c4bench.model.telemetry import ArrivalRecord, CommRecord, ConnRecord, Member, OpRecord, RankRecord
from c4bench.model.window import HostNames, Numbering
from c4bench.wire.peer import encode
from c4bench.wire.window_codec import FORMAT, NamesChange, WindowDecoder, WindowEncoder, from_message
from tools.sim.windows import window_of

MEMBERS = (Member(0, "h0", ("h0/0",)), Member(1, "h1", ("h1/0",)))


def made(sequence, names, numbering=None, **head):
    """A window of h0 with an operation and both ends of a connection in each of these communicators."""
    comms = [CommRecord(name, "job", MEMBERS) for name in names]
    ops = [OpRecord(name, 0, sequence, "all_reduce", "ring", "float32", 8, 1.0, 1.5, 0.0, (1, 9)) for name in names]
    spent_s = (0.25, 0.0, 0.5, 0.125)
    conns = [
        ConnRecord(name, 0, 1, "h0/0", "h1/0", 7, 49152, 3, 24, *spent_s, 1.5, 1, 0, "credit", 1.75, 3, 2**64 - 1)
        for name in names
    ]
    arrivals = [ArrivalRecord(name, 0, 1, "h1/0", "h0/0", 9, 4, 4, 40) for name in names]
    ranks = (RankRecord("job", 0, "h0", 7, "running"),)
    layers = comms, ranks, ops, conns, arrivals
    return window_of(head.get("host", "h0"), sequence, float(sequence), sequence + 1.0, *layers, numbering=numbering)


def message(**changes):
    """The message of a window, with some of its fields changed."""
    return encode(msgspec.structs.replace(WindowEncoder().encode(made(1, ["a", "b"])), **changes))


def received(body):
    return WindowDecoder().decode(from_message(body))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sets(st.sampled_from("abcdef"), max_size=4), min_size=1, max_size=8))
def test_what_is_decoded_is_what_was_encoded(rounds):
    """Whatever communicators come and go, and whatever numbers are used again, every window says the same there."""
    encoder, decoder, numbering = WindowEncoder(), WindowDecoder(), Numbering()
    for sequence, names in enumerate(rounds, start=1):
        window = made(sequence, sorted(names), numbering)
        decoded = decoder.decode(from_message(encode(encoder.encode(window))))
        assert decoded == window
        assert (decoded.ops, decoded.conns, decoded.arrivals) == (window.ops, window.conns, window.arrivals)
        assert {record.comm for record in decoded.comms} == names


def test_records_come_back_as_they_were_given():
    """A row says what its record said, with the time that a state has lasted by the end of the window."""
    window = made(1, ["a"])
    (op,), (conn,), (end,) = window.ops, window.conns, window.arrivals
    assert (op.comm, op.rank, op.kind, op.entered_s, op.awaits) == ("a", 0, "all_reduce", 1.0, (1, 9))
    assert (conn.state, conn.wait_credit_s, conn.state_since_s, conn.posted_sum_ns) == ("credit", 0.25, 1.75, 2**64 - 1)
    assert (end.rank, end.qp, end.messages, end.arrived_sum_ns) == (0, 9, 4, 40)


def test_a_window_that_comes_twice_decodes_twice():
    """The second time changes no name."""
    decoder, encoded = WindowDecoder(), WindowEncoder().encode(made(1, ["a", "b"]))
    assert decoder.decode(encoded) == decoder.decode(encoded)


@pytest.mark.parametrize("number", [None, 1, FORMAT + 1, 2**40])
def test_another_format_is_refused_by_its_number(number):
    """The error says which format the window has and which one is read here, whatever else the message holds."""
    other = {"host": 7} if number is None else {"format": number, "host": {"name": "h0"}}
    with pytest.raises(msgspec.DecodeError, match=f"this c4bench reads format {FORMAT}"):
        received(encode(other))
    if number is not None:
        with pytest.raises(msgspec.DecodeError, match=f"of format {number}"):
            received(message(format=number))


@pytest.mark.parametrize("table", ["op_table", "conn_table", "arrival_table"])
def test_a_table_of_another_length_than_rows_have_is_refused(table):
    """One byte too many, or a row cut short."""
    whole = getattr(made(1, ["a"]), table)
    for torn in (whole + b"x", whole[:-1]):
        with pytest.raises(msgspec.DecodeError, match=f"{table}: .* bytes are left of rows"):
            received(message(**{table: torn}))


@pytest.mark.parametrize("numbers", [[1], [0, 2], [-1], [2**31], [2**62]])
def test_numbers_that_leave_a_gap_are_refused(numbers):
    """A number of a name is the next one or one that is known, so no number makes room for others."""
    names = NamesChange(comms=tuple((number, CommRecord("c", "job", MEMBERS)) for number in numbers))
    tracemalloc.start()
    with pytest.raises(msgspec.DecodeError, match=r"number \S+ of a name"):
        received(message(names=names))
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 1 << 20


def test_a_length_that_lies_makes_no_room():
    """A table that is said to have 4 GiB, in a message of a few bytes, is refused before anything is allocated."""
    table = made(1, ["a"]).op_table
    body = message(op_table=table).replace(b"\xc4" + bytes([len(table)]), b"\xc6\xff\xff\xff\xff")
    tracemalloc.start()
    with pytest.raises(msgspec.DecodeError):
        received(body)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 1 << 20


def test_rows_without_a_name_are_left_out():
    """Numbers that stand for nothing make no record, and no error."""
    window = received(message(names=NamesChange()))
    assert window.names == HostNames()
    assert (window.ops, window.conns, window.arrivals) == ((), (), ())
