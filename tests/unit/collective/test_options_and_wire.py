"""Options that cannot work, and what ranks tell each other."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from c4bench.collective import handshake
from c4bench.collective.endpoints import cut_staging
from c4bench.collective.options import Options, now_ns
from c4bench.errors import UsageError

u32, u64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
signatures = st.builds(
    handshake.Signature,
    st.sampled_from(handshake.KINDS),
    st.sampled_from(handshake.DTYPES),
    st.sampled_from(handshake.REDUCTIONS),
    st.integers(0, 1023),
    u64,
)


@pytest.mark.parametrize(
    "wrong",
    [
        {"paths": "best"},
        {"completions": "guess"},
        {"chunk_bytes": 100},
        {"staging_bytes": 64},
        {"window": -1},
        {"qps": -1},
        {"timeout_s": 0.0},
        {"connect_s": -1.0},
    ],
)
def test_options_that_cannot_work_are_refused(wrong):
    """Each impossible option is refused by name when the options are made."""
    with pytest.raises(UsageError, match=next(iter(wrong))):
        Options(**wrong)


@pytest.mark.parametrize(("qps", "window", "long"), [(1, 8, 8), (4, 8, 8), (5, 20, 10), (8, 32, 16), (16, 128, 32)])
def test_more_qps_have_more_bytes_in_flight(qps, window, long):
    """Each QP of more than four has as much in flight as each of four, in shorter or `long` messages."""
    assert (Options().with_qps(qps).qps, Options().with_qps(qps).window) == (qps, window)
    assert Options(chunk_bytes=128 << 10).with_qps(qps).window == long
    assert Options(window=3).with_qps(qps).window == 3
    chosen = Options().with_qps(qps)
    assert chosen.staging_bytes >= 2 * chosen.window * chosen.chunk_for(10e9)


@pytest.mark.parametrize(
    ("rate_bps", "chunk_bytes"), [(1.0, 128 << 10), (10e9, 128 << 10), (25e9, 256 << 10), (1e11, 256 << 10)]
)
def test_messages_suit_the_rate(rate_bps, chunk_bytes):
    """A message lasts some 100 us of the line, within bounds; a size that is given holds at any rate."""
    assert Options().chunk_for(rate_bps) == chunk_bytes
    assert Options(chunk_bytes=4096).chunk_for(rate_bps) == 4096


@pytest.mark.parametrize(("qps", "share"), [(0, 1), (1, 1), (4, 1), (5, 2), (8, 2), (9, 4), (16, 4)])
def test_messages_of_many_qps_are_shorter(qps, share):
    """Eight QPs send twice as many messages at a time as four, so each has half the bytes to end as soon."""
    assert Options(qps=qps).chunk_for(10e9) == (128 << 10) // share
    assert Options(qps=qps, chunk_bytes=4096).chunk_for(10e9) == 4096


places = st.lists(st.tuples(u64, u32), min_size=1, max_size=handshake.MAX_SHARED_CHANNELS).map(tuple)


@given(st.builds(handshake.Grant, u32, u32, places, signatures), st.integers(0, handshake.MAILBOX_SLOTS - 1))
def test_grants_survive_the_mailbox(grant, slot):
    """Any grant written to any slot of a mailbox is read back as it was, with its place on every NIC."""
    mailbox = bytearray(handshake.MAILBOX_BYTES)
    packed, start = handshake.pack_grant(grant), slot * handshake.SLOT_BYTES
    mailbox[start : start + len(packed)] = packed
    assert len(packed) <= handshake.SLOT_BYTES
    assert len(mailbox) == handshake.MAILBOX_BYTES
    assert handshake.unpack_grant(memoryview(mailbox)[start:], len(grant.places)) == grant


@given(st.integers(0, 1 << 20), st.integers(1 << 20, 1 << 24))
def test_staging_slots_fit_and_hold_a_message(message_bytes, staging_bytes):
    """Slots never overlap, never leave the staging memory, and hold the longest message."""
    cut = cut_staging(staging_bytes, message_bytes)
    assert cut.slots >= 1
    assert cut.slots * cut.slot_bytes <= staging_bytes
    assert cut.slot_bytes >= message_bytes


def test_the_clock_never_steps_back():
    """Successive readings never fall."""
    readings = [now_ns() for _ in range(1000)]
    assert readings == sorted(readings)
