"""What is watched from outside: the exercise, and what is made of the watching."""

import pytest

from c4bench.errors import UnhealthyError
from c4bench.model.measurement import Outcome
from c4bench.record import RunDirectory
from c4bench.record.encoding import decode
from tools.bench import exercise, instructions, local_suites
from tools.bench.exercise import Reading


def test_memory_is_read_where_asked(capsys):
    """One reading for each number of operations, of a process that holds something."""
    assert exercise.main(["2", "5", "--silent"]) == 0
    readings = [decode(line.encode(), Reading, "output") for line in capsys.readouterr().out.splitlines()]
    assert [reading.operations for reading in readings] == [2, 5]
    assert all(reading.resident_bytes > 1 << 20 for reading in readings)


def test_instructions_are_shared_out_among_messages():
    """A recorder that adds 30 to 970 over ten messages costs 3 a message, and 3 % of all."""
    found = instructions.compare(1000, 970, 10)
    assert (found.per_message, found.fraction) == (3.0, 0.03)


def test_the_count_is_what_callgrind_collected():
    """Its last word counts; an output without one is an error that quotes it."""
    assert instructions.collected("==7== Events    : Ir\n==7== Collected : 636605370\n") == 636605370
    with pytest.raises(UnhealthyError, match="unhandled instruction"):
        instructions.collected("==7== valgrind: unhandled instruction bytes")


def test_without_valgrind_the_figure_is_inconclusive_with_its_reason(tmp_path, monkeypatch):
    """Nothing is counted, nothing fails, and the run says what to install."""
    monkeypatch.setenv("PATH", str(tmp_path))
    run = RunDirectory(tmp_path)
    local_suites._count_instructions(run, quick=True)
    (taken,) = run.timings()
    assert taken.outcome is Outcome.INCONCLUSIVE
    assert "apt-get install valgrind" in taken.labels["reason"]
