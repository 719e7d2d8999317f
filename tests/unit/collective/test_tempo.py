"""Messages at a rate."""

from c4bench.collective.tempo import Tempo


def test_messages_keep_to_the_rate():
    """A message waits until those before it would have been sent; a pause saves nothing up."""
    tempo = Tempo(8e9)
    assert tempo.wait_ns(1000) == 0
    tempo.took(500, 1000)
    assert tempo.wait_ns(1100) == 400
    assert tempo.wait_ns(1500) == 0
    tempo.took(500, 9000)
    tempo.took(500, 9000)
    assert tempo.wait_ns(9000) == 1000
