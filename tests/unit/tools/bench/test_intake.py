"""What the master takes for telemetry: the replayed windows, the stages of sampled stacks, and growth with hosts."""

import msgspec
import pytest

from c4bench.c4d.offline import detect
from c4bench.model.recording import Evaluated
from c4bench.wire.messages import Note
from c4bench.wire.window_codec import WindowDecoder, from_message
from tools.bench import intake_load
from tools.bench.intake import Point, exponent, rss_per_host_bytes
from tools.bench.intake_master import Reading, stage

ROOT = "/anywhere/c4bench"
LOOP = ("/usr/lib/python3/asyncio/base_events.py", "_run_once")
INGEST = (f"{ROOT}/control/telemetry.py", "ingest")


def reading(hosts, window_s):
    return Point(hosts, Reading(100, 1.0, 100 * window_s, {}, (0.1,), 0, 0, 50_000_000 + hosts * 1_000_000))


def test_exponent_is_the_slope_of_the_cost_of_one_window_of_every_host():
    """A window that costs more in proportion to the hosts makes the master quadratic."""
    assert exponent([reading(hosts, 1e-4) for hosts in (5, 10, 20)]) == pytest.approx(1.0)
    assert exponent([reading(hosts, 1e-5 * hosts) for hosts in (5, 10, 20)]) == pytest.approx(2.0)
    assert rss_per_host_bytes([reading(hosts, 1e-4) for hosts in (5, 10, 20)]) == pytest.approx(1e6)


@pytest.mark.parametrize(
    ("stack", "expected"),
    [
        ([LOOP], "transport"),
        ([("/x/websockets/frames.py", "parse"), (f"{ROOT}/wire/channel.py", "receive"), LOOP], "transport"),
        ([(f"{ROOT}/wire/peer.py", "_dispatch"), LOOP], "decoding"),
        ([(f"{ROOT}/c4p/tuning.py", "ingest"), INGEST, LOOP], "routing"),
        ([("/x/numpy/core.py", "sort"), INGEST, LOOP], "routing"),
        ([(f"{ROOT}/record/telemetry.py", "append"), INGEST, LOOP], "recording"),
        ([(f"{ROOT}/c4d/detector.py", "ingest"), INGEST, LOOP], "feeding"),
        (
            [(f"{ROOT}/c4d/detector.py", "flush"), (f"{ROOT}/c4d/detector.py", "evaluate"), LOOP],
            "filing",
        ),
        ([(f"{ROOT}/c4d/observe/columns.py", "rounds"), (f"{ROOT}/c4d/detector.py", "evaluate"), LOOP], "judging"),
        ([("/x/intake_master.py", "collected"), (f"{ROOT}/c4d/detector.py", "evaluate"), LOOP], "gc"),
    ],
)
def test_a_stack_is_of_the_innermost_stage(stack, expected):
    """What another library does counts for the stage that called it."""
    assert stage(stack) == expected


def test_a_replayed_window_is_what_eight_busy_ranks_send(tmp_path):
    """Ten operations of each rank, both ends of eight connections each, and the host's communicators."""
    intake_load.write_replays(tmp_path, intake_load.GROUP, 0.35)
    known = intake_load.read_replay(tmp_path, "h1")
    notes = [msgspec.msgpack.decode(message, type=Note) for message in known.messages]
    decoder = WindowDecoder()
    window = [decoder.decode(from_message(bytes(note.body))) for note in notes][-1]
    assert (window.host, [note.method for note in notes]) == ("h1", ["window"] * 3)
    assert known.ends_s == pytest.approx((0.1, 0.2, 0.3))
    assert 70 <= len(window.ops) <= 90
    assert (len(window.comms), len(window.conns), len(window.arrivals), len(window.ranks)) == (9, 64, 64, 8)
    assert len(known.flows) == len(window.conns)


def test_a_replayed_job_is_healthy():
    """Nothing is named in it, so that the master spends its time on telemetry."""
    records = []
    for tick in intake_load.windows(intake_load.GROUP, 3.0):
        records += [*tick, Evaluated(tick[0].end_s)]
    assert detect(records) == []
