"""What launchers, shippers and terminals put around a line is taken off, and nothing else is."""

import pytest

from c4bench.evidence.lines import LONGEST_LINE, Line, bare, plain

ROW = "     8388608       2097152     float     sum      -1    93.28"


@pytest.mark.parametrize(
    ("written", "line"),
    [
        (f"[1,0]<stdout>:{ROW}", Line(ROW, 0)),
        (f"[prterun-trainer-0-77@1,3]<stdout>: {ROW}", Line(ROW, 3)),
        ("[1,0]<stdout>:  16777216 [1,0]<stdout>:4194304", Line("  16777216 4194304", 0)),
        (" 7: done", Line("done", 7)),
        ("[11] done", Line("done", 11)),
        ("[default0]:[rank8]: Traceback", Line("Traceback", 8)),
        ("\x1b[36m(TrainWorker pid=51023, ip=192.0.2.31)\x1b[0m [rank5]:[E209 16:40:12] x",
         Line("[E209 16:40:12] x", 5, "192.0.2.31", 51023)),
        ("2026-03-19T07:22:51.104Z gpu-a01 trainer[7010]: [rank0]:[E319 07] y",
         Line("[E319 07] y", 0, "gpu-a01", 7010, "2026-03-19T07:22:51.104Z")),
        ("Mar 19 07:22:51 gpu-a01 app[33]: 5: x", Line("x", 5, "gpu-a01", 33, "Mar 19 07:22:51")),
        ("2026-03-19T07:22:51.104123456Z stderr F 2026-03-19 07:22:51,104 x",
         Line("x", at="2026-03-19 07:22:51,104")),
        ("[pod/trainer-3/pytorch] 3: x", Line("x", 3, "trainer-3")),
        ("gpu-a07: x", Line("x", host="gpu-a07")),
    ],
)  # fmt: skip
def test_prefixes_are_taken_off_and_say_where_a_line_is_from(written, line):
    """Each launcher's and shipper's prefix is known, alone and one within another; leading blanks of columns stay."""
    assert plain(written) == line
    assert bare(written) == line.text


@pytest.mark.parametrize("written", [ROW, "gpu-c02:41210:41402 [3] NCCL INFO proxy.cc:746 -> 6", "Error: no", "# x: 3"])
def test_what_is_no_prefix_stays(written):
    """A table's row, NCCL's own place of a line and plain words are left as they are."""
    assert plain(written) == Line(written)


def test_a_line_without_end_is_cut():
    """A line of a file without line breaks costs no more than a long one."""
    assert len(bare("x" * 10 * LONGEST_LINE)) == LONGEST_LINE
