"""Many records at once: columns, rounds and tables."""

import numpy as np
from c4d_telemetry import comm, file, op, window
from hypothesis import given
from hypothesis import strategies as st

from c4bench.c4d.columns import Index, Runs, Table, distinct, earlier, medians, rounds
from c4bench.c4d.ingest.batch import Batch
from c4bench.c4d.ingest.job_view import JobView
from c4bench.c4d.ingest.operations import OpenOperations
from c4bench.c4d.ingest.record_validator import RecordValidator


def test_no_round_holds_a_row_twice():
    """Rows are met in order: all for the first time, then those that come again."""
    rows = np.asarray([4, 7, 4, 4, 7])
    assert [turn.tolist() for turn in rounds(rows)] == [[0, 1], [2, 4], [3]]
    assert list(rounds(np.empty(0, np.int64))) == []


@given(st.lists(st.lists(st.floats(-1e6, 1e6), min_size=6, max_size=6), min_size=1, max_size=4), st.integers(1, 6))
def test_medians_are_those_of_numpy(listed, count):
    """The median of each row, to the last bit, of even and odd numbers of values."""
    values = np.asarray(listed)[:, :count]
    assert medians(values.copy()).tolist() == np.median(values, axis=1).tolist()


def test_new_rows_are_blank_however_often_a_table_grows():
    """What was written stays, and what is new holds the blanks."""
    table = Table(seen=0, at_s=-1.0, record=None)
    for row in range(100):
        assert table.add() == row
        table["seen"][row] = row
    assert table.used("seen").tolist() == list(range(100))
    assert set(table.used("at_s").tolist()) == {-1.0}
    assert set(table.used("record").tolist()) == {None}


def test_columns_that_are_kept_together_are_the_rows_of_a_block():
    """What is written to one is read from the other, also after the table has grown."""
    table = Table("messages", "spent_s", row=0, messages=-1.0, spent_s=0.0)
    table.add(20)
    table.block[:, 3] = 7.0, 0.5
    table["messages"][4] = 8.0
    table.add(100)
    assert (table["messages"][3], table["spent_s"][3]) == (7.0, 0.5)
    assert table.block[:, [4, 100]].tolist() == [[8.0, -1.0], [0.0, 0.0]]


@given(st.lists(st.integers(0, 4), max_size=30))
def test_equal_rows_before_each_are_counted(rows):
    """Each row is told how many equal ones come before it."""
    assert earlier(np.asarray(rows, np.int64)).tolist() == [rows[:place].count(row) for place, row in enumerate(rows)]


def test_a_key_without_a_row_is_told():
    """Unknown keys are -1."""
    assert Index(a=5).rows("ba", 2).tolist() == [-1, 5]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-5, 5), st.booleans()), max_size=40), st.booleans())
def test_what_came_before_a_row_is_what_a_walk_finds(listed, in_order):
    """Of each key the value before, the highest so far and the latest marked row, whatever the order of keys."""
    if in_order:
        listed.sort(key=lambda row: row[0])
    keys, values, marked = (np.asarray([row[place] for row in listed], np.int64) for place in range(3))
    runs, initial = Runs(keys), keys * 100
    last, highest, latest = {}, {}, {}
    for row, (key, value, mark) in enumerate(listed):
        assert runs.before(values, initial)[row] == (values[last[key]] if key in last else initial[row])
        highest[key], last[key] = max(value, highest.get(key, value)), row
        latest[key] = row if mark else latest.get(key, -1)
        assert runs.highest(values)[row] == highest[key]
        assert runs.highest(values.astype(np.float64))[row] == highest[key]
        assert runs.latest(marked.astype(np.bool_))[row] == latest[key]
    assert sorted(runs.last.tolist()) == sorted(last.values())


@given(st.lists(st.integers(-5, 5)))
def test_distinct_values_come_in_order(values):
    """Each once."""
    assert distinct(np.asarray(values, np.int64)).tolist() == sorted(set(values))


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 2), st.integers(0, 9)), max_size=60))
def test_operations_are_found_as_long_as_they_are_open(steps):
    """As in a dictionary, by communicator and sequence number; those of a communicator come in order."""
    known, open_ = {}, OpenOperations()
    for row, (adds, number, seq) in enumerate(steps):
        comms, seqs = np.asarray([number]), np.asarray([seq])
        if adds and (number, seq) not in known:
            open_.add(comms, seqs, np.asarray([row]))
            known[number, seq] = row
        elif not adds and known.pop((number, seq), None) is not None:
            open_.remove(comms, seqs)
    every = [(number, seq) for number in range(3) for seq in range(10)]
    comms, seqs = (np.asarray([key[place] for key in every]) for place in range(2))
    assert open_.starts(comms, seqs).tolist() == [known.get(key, -1) for key in every]
    assert [key for key in every if key not in known] == list(zip(*map(list, open_.missing(comms, seqs)), strict=True))
    for number in range(3):
        mine = sorted((seq, row) for (one, seq), row in known.items() if one == number)
        assert list(zip(*map(list, open_.of(number)), strict=True)) == mine


def test_the_oldest_of_too_many_open_operations_go():
    """Of a communicator whose operations never end the newest are kept; others lose nothing."""
    job = JobView("job")
    for name in ("world", "other"):
        job.add_comm(comm(name=name))
    for seq in range(200):
        file(job, 1.0 + seq, ops=[op(0, seq, 0.5 + seq)])
    file(job, 300.0, ops=[op(0, 0, 299.0, name="other")])
    assert [seq for seq in range(200) if job.comms["world"].records_of(seq)] == list(range(72, 200))
    assert job.comms["world"].uncompleted(0).seq == 72
    assert job.comms["other"].uncompleted(0).seq == 0


def test_an_operation_that_a_window_has_twice_counts_once():
    """A record that comes again in the same window neither makes an interval nor moves its rank later."""
    job = JobView("job")
    job.add_comm(comm())
    file(job, 1.0, ops=[op(0, 0, 0.5, 0.6)])
    twice = window("h0", 2, 2.0, ops=[op(0, 1, 1.5), op(0, 1, 1.5)])
    job.ingest(Batch([twice]), RecordValidator())
    assert job.intervals_s == (1.0,)
    assert job.comms["world"].latest(0) == op(0, 1, 1.5)
    assert job.comms["world"].records_of(1) == {0: op(0, 1, 1.5)}
