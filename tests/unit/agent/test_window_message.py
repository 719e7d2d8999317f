"""A window that is larger than the master accepts loses records, and not the connection."""

import msgspec

from c4bench.agent.window_message import WindowMessages
from c4bench.model.telemetry import CommRecord, Member, OpRecord, RankRecord, Window

COMM = CommRecord("job.world", "job", tuple(Member(rank, "h0", (f"h0/{rank}",)) for rank in range(8)))
OP = OpRecord("job.world", 0, 1, "all_reduce", "ring", "float32", 8, 1.0, 1.0, 2.0)
RANK = RankRecord("job", 0, "h0", 7, "running")


def sent(messages, window):
    return msgspec.msgpack.decode(messages.encode(window), type=Window)


def test_a_window_that_fits_is_sent_whole(caplog):
    """Nothing is said about it either."""
    messages, window = WindowMessages(10_000), Window("h0", 1, 0.0, 0.1, (COMM,), (RANK,), (OP,), ())
    assert sent(messages, window) == window
    assert (messages.reduced, caplog.text) == (0, "")


def test_a_window_that_is_too_large_is_sent_without_records_and_said_once(caplog):
    """Operations go first and communicators next; processes stay, and one warning says what to do."""
    messages = WindowMessages(1_000)
    many_ops = Window("h0", 1, 0.0, 0.1, (COMM,), (RANK,), (OP,) * 100, ())
    many_comms = Window("h0", 2, 0.1, 0.2, (COMM,) * 100, (RANK,), (OP,), ())
    assert sent(messages, many_ops) == Window("h0", 1, 0.0, 0.1, (COMM,), (RANK,), (), ())
    assert sent(messages, many_comms) == Window("h0", 2, 0.1, 0.2, (), (RANK,), (), ())
    assert messages.reduced == 2
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "use fewer of its 1 communicators" in caplog.text
