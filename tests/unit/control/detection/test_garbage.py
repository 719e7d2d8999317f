"""A master has garbage collected seldom, and a process that has had one as often as before."""

import gc

import pytest

from c4bench.control.detection.telemetry import collect_in_pause, seldom_collected
from c4bench.wire.peer import encode
from c4bench.wire.window_codec import WindowDecoder, WindowEncoder, from_message
from tools.bench import intake_load


def busy_message():
    """A window of eight busy ranks as its agent sends it, and a decoder that knows its names."""
    encoder, decoder = WindowEncoder(), WindowDecoder()
    window = next(intake_load.windows(intake_load.GROUP, 0.15))[0]
    decoder.decode(encoder.encode(window))
    return encode(encoder.encode(window)), decoder


@pytest.fixture
def unfrozen():
    """The tests' own objects as those of a process that has frozen nothing."""
    gc.unfreeze()
    yield
    gc.freeze()


@pytest.mark.usefixtures("unfrozen")
def test_windows_are_taken_in_without_collections():
    """Two hundred windows of eight busy ranks are kept without one; afterwards all is as before."""
    collected, before = [], gc.get_threshold()
    message, decoder = busy_message()
    gc.callbacks.append(lambda phase, _: collected.append(phase))
    with seldom_collected():
        del collected[:]
        kept = [decoder.decode(from_message(message)) for _ in range(200)]
        assert not collected
    gc.callbacks.pop()
    assert (len(kept), gc.get_threshold(), gc.get_freeze_count()) == (200, before, 0)


def test_what_a_process_has_frozen_stays_frozen():
    """Its own objects are left out of collections afterwards as before."""
    before = gc.get_freeze_count()
    assert before > 0
    with seldom_collected():
        pass
    assert gc.get_freeze_count() >= before


def test_collections_come_in_pauses(monkeypatch):
    """Where windows are kept, with an evaluation after every hundred, all collections come after evaluations."""
    monkeypatch.setattr("c4bench.control.detection.telemetry._THRESHOLDS", (1000, 20, 100))
    monkeypatch.setattr("c4bench.control.detection.telemetry._DUE", 500)
    collected, paused = [], False
    message, decoder = busy_message()
    gc.callbacks.append(lambda phase, _: collected.append((phase, paused)))
    with seldom_collected():
        del collected[:]
        kept = []
        for number in range(2_000):
            kept.append(decoder.decode(from_message(message)))
            if number % 100 == 0:
                paused = True
                collect_in_pause()
                paused = False
        assert {when for _, when in collected} == {True}
        del collected[:]
    gc.callbacks.pop()
