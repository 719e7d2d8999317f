"""Windows and their names, for a reader who begins in the middle."""

from collections import Counter

import msgspec

from c4bench.bus.job_follower import FOREIGN, LOST, UNREADABLE, HostWindows
from c4bench.model.telemetry import CommRecord, Member, OpRecord
from c4bench.wire.window_codec import WindowEncoder
from tools.sim.windows import window_of


def window(sequence, comms, host="h0"):
    """A window of a host with an operation in each of these communicators."""
    records = tuple(CommRecord(comm, "j", (Member(0, host, (f"{host}/0",), 0),)) for comm in comms)
    ops = tuple(OpRecord(comm, 0, 1, "all_reduce", "ring", "float32", 64, 1.0, 1.0, 0.0, ()) for comm in comms)
    return window_of(host, sequence, float(sequence), sequence + 1.0, records, (), ops, (), (), ())


class Sender:
    """Encodes windows as an agent does: (what names it has, body)."""

    def __init__(self):
        self._encoder = WindowEncoder()

    def send(self, one, *, begins=False):
        if begins:
            self._encoder = WindowEncoder()
        encoded = self._encoder.encode(one)
        return "begin" if begins else "change" if encoded.names != type(encoded.names)() else "", (
            msgspec.msgpack.encode(encoded)
        )


def reader(newest=None):
    """A reader, and what it has dropped, by reason."""
    dropped = Counter()
    return HostWindows({"h0"}, lambda _, reason, count: dropped.update({reason: count}), newest or {}), dropped


def stream():
    """An agent that opens a communicator, closes it for another, and is restarted; windows with what they say."""
    says = [["a"], ["a"], ["a", "b"], ["a", "b"], ["b", "c"], ["b", "c"]]
    sender, sent = Sender(), []
    for number, comms in enumerate(says):
        one = window(number, comms)
        sent.append((*sender.send(one, begins=number == 0), one))
    again = Sender()
    for number, comms in enumerate([["c"], ["c", "d"], ["c", "d"]]):
        one = msgspec.structs.replace(window(number, comms), start_s=10.0 + number, end_s=11.0 + number)
        sent.append((*again.send(one, begins=number == 0), one))
    return sent


def test_wherever_a_reader_begins_it_reads_what_was_sent():
    """The names that were sent before are those of the first window that is read, also over an agent's restart."""
    sent = stream()
    for first in range(len(sent)):
        windows, dropped = reader()
        for names, body, _ in sent:
            if names:
                windows.note_names("h0", body, begins=names == "begin")
        for names, body, one in sent[first:]:
            read = windows.receive("h0", body, begins=names == "begin")
            assert read is not None
            assert (read.ops, read.sequence) == (one.ops, one.sequence), first
        assert not dropped


def test_windows_that_the_bus_has_lost_are_counted():
    """A gap in a host's numbers is so many lost windows; an agent that begins again has lost none."""
    sent = stream()
    windows, dropped = reader()
    for number in (0, 1, 3, 5, 6):
        names, body, _ = sent[number]
        windows.receive("h0", body, begins=names == "begin")
    assert dropped == {LOST: 2}


def test_what_was_lost_before_a_reader_began_is_counted_once():
    """A reader that goes on from another's numbers counts what is missing since, and nothing that is read again."""
    sent = stream()
    for first, newest, lost in ((3, 1, 1), (3, 4, 0), (1, 4, 0)):
        windows, dropped = reader({"h0": newest})
        for names, body, _ in sent[first:6]:
            windows.receive("h0", body, begins=names == "begin")
        assert dropped[LOST] == lost
        assert windows.newest == {"h0": 5}


def test_what_is_no_window_of_the_host_is_dropped():
    """A body that cannot be read, or is of another host than the subject says, is counted and changes nothing."""
    windows, dropped = reader()
    _, body = Sender().send(window(0, ["a"], host="h1"), begins=True)
    assert windows.receive("h0", b"\xc1") is None
    assert windows.receive("h0", body) is None
    windows.note_names("h0", b"\xc1", begins=True)
    assert dropped == {UNREADABLE: 1, FOREIGN: 1}
