"""What the injector says reaches its caller, and nobody waits for a caller who does not listen."""

import os
import time

from c4bench.inject.caller import Output


def test_everything_is_written_in_order():
    """Pieces arrive as they were said, in UTF-8 or as escapes, before `finish` returns."""
    reader, writer = os.pipe()
    stream = Output(writer)
    for number in range(100):
        stream.write(f"{number}\n")
    stream.write("\udcff\n")
    stream.finish(time.monotonic() + 10)
    os.close(writer)
    with os.fdopen(reader) as read:
        assert read.read().splitlines() == [*map(str, range(100)), "\\udcff"]


def test_nobody_waits_for_a_pipe_that_is_full():
    """Writing returns at once, what is too much is dropped, and the end waits no longer than it may."""
    reader, writer = os.pipe()
    stream = Output(writer)
    began_s = time.monotonic()
    for _ in range(20_000):
        stream.write("x" * 100)
    assert stream._waiting.qsize() <= 10_000
    stream.finish(time.monotonic() + 0.1)
    assert time.monotonic() - began_s < 5
    os.close(reader)
    stream.finish(time.monotonic() + 10)
    os.close(writer)


def test_a_fork_says_nothing():
    """A watchdog that is forked writes nothing of its maker's."""
    reader, writer = os.pipe()
    stream = Output(writer)
    child = os.fork()
    if not child:
        stream.write("child")
        stream.finish(time.monotonic() + 1)
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    assert os.read(reader, 10) == b""
    os.close(reader)
