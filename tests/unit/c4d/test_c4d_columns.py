"""Many records at once: columns, rounds and tables."""

import numpy as np
from c4d_telemetry import comm, file, op, window
from hypothesis import given
from hypothesis import strategies as st

from c4bench.c4d.observe.batch import Batch
from c4bench.c4d.observe.columns import Index, SortedIndex, Table, distinct, medians, rounds
from c4bench.c4d.observe.job_view import JobView
from c4bench.c4d.observe.record_validator import RecordValidator


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


def test_a_key_without_a_row_is_told():
    """Unknown keys are -1."""
    assert Index(a=5).rows("ba", 2).tolist() == [-1, 5]


def test_rows_of_keys_that_were_removed_are_given_to_others():
    """A known key keeps its row; a new one gets that of a removed one, or the next."""
    index = Index()
    assert [index.open(key) for key in "abca"] == [0, 1, 2, 0]
    assert index.remove(lambda key: key in "ac") == [0, 2]
    assert sorted(index.open(key) for key in "def") == [0, 2, 3]


def test_rows_that_are_cleared_are_blank_again():
    """All columns of a row, or those that are named; a column may hold an array in each row."""
    table = Table(seen=0, shares=np.zeros(2), name=None)
    table.add(3)
    table["seen"][:3], table["shares"][:3], table["name"][:3] = 7, [0.5, 0.25], "rank"
    table.clear(1)
    table.clear([2], "shares")
    assert table["seen"][:3].tolist() == [7, 0, 7]
    assert table["shares"][:3].tolist() == [[0.5, 0.25], [0.0, 0.0], [0.0, 0.0]]
    assert table["name"][:3].tolist() == ["rank", None, "rank"]


@given(st.lists(st.integers(-5, 5)))
def test_distinct_values_come_in_order(values):
    """Each once."""
    assert distinct(np.asarray(values, np.int64)).tolist() == sorted(set(values))


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 30)), max_size=60))
def test_rows_are_found_by_number_as_in_a_dictionary(steps):
    """Numbers come and go; those of a range come in order."""
    known, index = {}, SortedIndex()
    for row, (adds, number) in enumerate(steps):
        if adds and number not in known:
            index.add(np.asarray([number]), np.asarray([row]))
            known[number] = row
        elif not adds and known.pop(number, None) is not None:
            index.remove(np.asarray([number]))
    assert len(index) == len(known)
    assert index.rows(np.arange(31)).tolist() == [known.get(number, -1) for number in range(31)]
    some = sorted((number, row) for number, row in known.items() if 5 <= number < 20)
    assert list(zip(*map(list, index.between(5, 20)), strict=True)) == some
    assert index.counts(np.asarray([5]), np.asarray([20])).tolist() == [len(some)]


@given(st.lists(st.lists(st.integers(-5, 5))))
def test_new_numbers_get_the_next_rows(batches):
    """However often a number comes, it keeps its row; rows are as many as there are numbers."""
    index, known = SortedIndex(), {}
    for numbers in batches:
        rows = index.open(np.asarray(numbers, np.int64)).tolist()
        for number, row in zip(numbers, rows, strict=True):
            assert known.setdefault(number, row) == row
    assert sorted(known.values()) == list(range(len(index)))


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
