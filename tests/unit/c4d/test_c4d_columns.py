"""Many records at once: columns, rounds and tables."""

import numpy as np

from c4bench.c4d.columns import Index, Table, rounds


def test_no_round_holds_a_row_twice():
    """Rows are met in order: all for the first time, then those that come again."""
    rows = np.asarray([4, 7, 4, 4, 7])
    assert [turn.tolist() for turn in rounds(rows)] == [[0, 1], [2, 4], [3]]
    assert list(rounds(np.empty(0, np.int64))) == []


def test_new_rows_are_blank_however_often_a_table_grows():
    """What was written stays, and what is new holds the blanks."""
    table = Table(seen=0, at_s=-1.0, record=None)
    for row in range(100):
        assert table.add() == row
        table["seen"][row] = row
    assert table.used("seen").tolist() == list(range(100))
    assert set(table.used("at_s").tolist()) == {-1.0}
    assert set(table.used("record").tolist()) == {None}


def test_a_key_without_a_row_is_told():
    """Unknown keys are -1."""
    assert Index(a=5).rows("ba", 2).tolist() == [-1, 5]
