"""How much each channel carries, and in which pieces."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from c4bench.collective.channel_transfer import MAX_WINDOW_FACTOR, ChannelSplit

_PACKET_BYTES = 4096


@given(
    channel_split=st.builds(
        ChannelSplit,
        st.lists(st.integers(0, 100), min_size=1, max_size=8).filter(any).map(tuple),
        st.integers(64, 8192).map(lambda lines: 64 * lines),
        st.integers(1, 16),
    ),
    items=st.integers(0, 1 << 20),
    chunks=st.integers(1, 64),
)
def test_finer_carriage(channel_split, items, chunks):
    """Finer splits have shorter messages, no shorter than a packet, and no fewer bytes in flight."""
    finer = channel_split.finer(4 * items, chunks)
    assert min(_PACKET_BYTES, channel_split.chunk_bytes) <= finer.chunk_bytes <= channel_split.chunk_bytes
    assert channel_split.window <= finer.window <= MAX_WINDOW_FACTOR * channel_split.window
    under_way = finer.window * finer.chunk_bytes
    assert (
        under_way >= channel_split.window * channel_split.chunk_bytes
        or finer.window == MAX_WINDOW_FACTOR * channel_split.window
    )
    array = np.empty(items, np.float32)
    cuts = finer.cuts([(0, items)], array)
    assert sum(stop - start for _, cut in cuts for start, stop in cut.segments) == items
    assert all(cut.longest() * array.itemsize <= finer.chunk_bytes for _, cut in cuts)
