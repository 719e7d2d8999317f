"""A window that is larger than the master accepts loses records, and not the connection."""

from c4bench.agent.window_message import WindowMessages
from c4bench.model.telemetry import CommRecord, Member, OpRecord, RankRecord
from c4bench.wire.window_codec import WindowDecoder, from_message
from tools.sim.windows import window_of

COMM = CommRecord("job.world", "job", tuple(Member(rank, "h0", (f"h0/{rank}",)) for rank in range(8)))
OP = OpRecord("job.world", 0, 1, "all_reduce", "ring", "float32", 8, 1.0, 1.0, 2.0)
RANK = RankRecord("job", 0, "h0", 7, "running")


class Master:
    """Decodes what an agent sends over one connection."""

    def __init__(self, messages):
        self._messages, self._decoder = messages, WindowDecoder()

    def receive(self, window):
        return self._decoder.decode(from_message(bytes(self._messages.encode(window))))


def test_a_window_that_fits_is_sent_whole(caplog):
    """Nothing is said about it either."""
    messages, window = WindowMessages(10_000), window_of("h0", 1, 0.0, 0.1, (COMM,), (RANK,), (OP,))
    assert Master(messages).receive(window) == window
    assert (messages.reduced, caplog.text) == (0, "")


def test_names_are_sent_once_a_connection():
    """A window like the one before has less than half of its bytes; the next connection's first has all names again."""
    messages, window = WindowMessages(10_000), window_of("h0", 1, 0.0, 0.1, (COMM,), (RANK,), (OP,))
    master, first, second = Master(messages), messages.encode(window), messages.encode(window)
    assert 2 * len(bytes(second)) < len(bytes(first))
    messages.begin()
    assert bytes(messages.encode(window)) == bytes(first)
    messages.begin()
    assert [master.receive(window) for _ in range(2)] == [window, window]


def test_a_window_that_is_too_large_is_sent_without_records_and_said_once(caplog):
    """Operations go first and communicators next; processes stay, and one warning says what to do."""
    messages = WindowMessages(1_000)
    master = Master(messages)
    many_ops = window_of("h0", 1, 0.0, 0.1, (COMM,), (RANK,), (OP,) * 100)
    comms = [CommRecord(f"job.{number}", "job", COMM.members) for number in range(100)]
    many_comms = window_of("h0", 2, 0.1, 0.2, comms, (RANK,), (OP,))
    seen = [master.receive(window) for window in (many_ops, many_comms)]
    assert [(window.sequence, window.comms, window.ranks, window.ops) for window in seen] == [
        (1, (COMM,), (RANK,), ()),
        (2, (COMM,), (RANK,), ()),
    ]
    assert messages.reduced == 2
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "use fewer of its 1 communicators" in caplog.text


def test_names_of_a_window_that_was_too_large_are_sent_with_the_next():
    """A master that got a window without its names gets them once a window fits, and knows what its numbers mean."""
    messages = WindowMessages(1_000)
    master = Master(messages)
    master.receive(window_of("h0", 1, 0.0, 0.1, (COMM,), (RANK,), (OP,) * 100))
    window = window_of("h0", 2, 0.1, 0.2, (COMM,), (RANK,), (OP,))
    assert master.receive(window) == window
