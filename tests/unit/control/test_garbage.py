"""A master has garbage collected seldom, and a process that has had one as often as before."""

import gc

from c4bench.bench import intake_load
from c4bench.control.garbage import seldom_collected
from c4bench.wire.peer import encode
from c4bench.wire.window_codec import WindowDecoder, WindowEncoder, from_message


def test_windows_are_taken_in_without_collections():
    """Two hundred windows of eight busy ranks are kept without one; afterwards all is as before."""
    collected, before = [], gc.get_threshold()
    encoder, decoder = WindowEncoder(), WindowDecoder()
    window = next(intake_load.windows(intake_load.GROUP, 0.15))[0]
    decoder.decode(encoder.encode(window))
    message = encode(encoder.encode(window))
    gc.callbacks.append(lambda phase, _: collected.append(phase))
    with seldom_collected():
        del collected[:]
        kept = [decoder.decode(from_message(message)) for _ in range(200)]
        assert not collected
    gc.callbacks.pop()
    assert (len(kept), gc.get_threshold(), gc.get_freeze_count()) == (200, before, 0)
