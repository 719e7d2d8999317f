"""What a job's recording keeps while the job runs."""

from c4bench.model.recording import Evaluated, LinksMissing
from c4bench.record.telemetry import Recording, to_lines

HEARD = [Evaluated(1.5), LinksMissing(2.0, ()), Evaluated(3.25)]


def test_a_recording_gives_back_what_was_put_in_as_often_as_it_is_asked():
    """Records come out equal and in order, each time, and what is heard later is not in an earlier copy."""
    recording = Recording()
    recording.extend(HEARD[:2])
    before = recording.copy()
    recording.append(HEARD[2])
    assert [list(recording), list(recording), list(before)] == [HEARD, HEARD, HEARD[:2]]
    assert list(to_lines(recording)) == list(to_lines(HEARD))


def test_a_recording_of_a_master_that_lives_on_keeps_the_newest():
    """Of three records the newest two are kept where two are the most."""
    recording = Recording(most=2)
    recording.extend(HEARD)
    assert list(recording) == HEARD[1:]
