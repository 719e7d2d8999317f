"""How much each channel carries, and in which pieces."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from c4bench.collective import schedule
from c4bench.collective.channel_transfer import MAX_WINDOW_FACTOR, ChannelSplit

_PACKET_BYTES = 4096


SPLITS = st.builds(
    ChannelSplit,
    st.lists(st.integers(0, 100), min_size=1, max_size=8).filter(any).map(tuple),
    st.integers(64, 8192).map(lambda lines: 64 * lines),
    st.integers(1, 16),
    st.just(1),
)


@given(channel_split=SPLITS, items=st.integers(0, 1 << 20), chunks=st.integers(1, 64))
def test_finer_carriage(channel_split, items, chunks):
    """Finer splits have shorter messages, no shorter than a packet, and no fewer bytes in flight."""
    finer = channel_split.finer(4 * items, chunks)
    assert min(_PACKET_BYTES, channel_split.chunk_bytes) <= finer.chunk_bytes <= channel_split.chunk_bytes
    assert channel_split.window <= finer.window <= MAX_WINDOW_FACTOR * channel_split.window
    check_under_way(finer, channel_split)
    array = np.empty(items, np.float32)
    cuts = finer.cuts([(0, items)], array)
    assert sum(stop - start for _, cut in cuts for start, stop in cut.segments) == items
    assert all(cut.longest() * array.itemsize <= finer.chunk_bytes for _, cut in cuts)


@given(channel_split=SPLITS, qps=st.integers(1, 8))
def test_messages_of_qps_that_share_a_nic(channel_split, qps):
    """So many QPs of a NIC send messages that are shorter by that factor, of whole packets, and as many bytes."""
    shared = channel_split.for_shared_nics(qps)
    assert shared.chunk_bytes <= max(channel_split.chunk_bytes / qps, min(_PACKET_BYTES, channel_split.chunk_bytes))
    assert not shared.chunk_bytes % _PACKET_BYTES or shared.chunk_bytes == channel_split.chunk_bytes < _PACKET_BYTES
    check_under_way(shared, channel_split)


def check_under_way(shorter, channel_split):
    """No fewer bytes are in flight, unless send queues would be too short."""
    assert (
        shorter.window * shorter.chunk_bytes >= channel_split.window * channel_split.chunk_bytes
        or shorter.window == MAX_WINDOW_FACTOR * channel_split.window
    )


@pytest.mark.parametrize(
    ("segment_bytes", "carriers", "messages"), [(1 << 20, 3, 6), (870_000, 7, 7), (1 << 20, 1, 4), (400_000, 7, 2)]
)
def test_messages_of_a_lost_nic_can_be_carried_in_equal_parts(segment_bytes, carriers, messages):
    """A segment has as many messages for each carrier, none longer than before, unless they would be too short."""
    array = np.empty(2 * segment_bytes // 4, np.float32)
    channel_split = ChannelSplit((1,), 256 << 10, 8, carriers)
    ((_, part),) = channel_split.cuts(schedule.split(array.size, 2), array)
    assert part.chunks == messages
    assert part.longest() * array.itemsize <= channel_split.chunk_bytes
