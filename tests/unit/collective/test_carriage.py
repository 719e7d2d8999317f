"""How much each channel carries, and in which pieces."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from c4bench.collective.channel_split import MOST_FINER, ChannelSplit

_PACKET_BYTES = 4096


@given(
    carriage=st.builds(
        ChannelSplit,
        st.lists(st.integers(0, 100), min_size=1, max_size=8).filter(any).map(tuple),
        st.integers(64, 8192).map(lambda lines: 64 * lines),
        st.integers(1, 16),
    ),
    items=st.integers(0, 1 << 20),
    chunks=st.integers(1, 64),
)
def test_finer_carriage(carriage, items, chunks):
    """Messages get shorter, but not below a packet; no fewer bytes are under way, within what send queues hold."""
    finer = carriage.finer(4 * items, chunks)
    assert min(_PACKET_BYTES, carriage.chunk_bytes) <= finer.chunk_bytes <= carriage.chunk_bytes
    assert carriage.window <= finer.window <= MOST_FINER * carriage.window
    under_way = finer.window * finer.chunk_bytes
    assert under_way >= carriage.window * carriage.chunk_bytes or finer.window == MOST_FINER * carriage.window
    array = np.empty(items, np.float32)
    cuts = finer.cuts([(0, items)], array)
    assert sum(stop - start for _, cut in cuts for start, stop in cut.segments) == items
    assert all(cut.longest() * array.itemsize <= finer.chunk_bytes for _, cut in cuts)
