"""Within a block that changes nothing, a command runs once, however often it is asked for."""

import pytest

from c4bench.errors import UnhealthyError
from c4bench.inject import reading
from c4bench.inject.actions import run


def test_a_command_runs_once_within_the_block(tmp_path):
    """The second answer is the first one's, also where it failed; after the block the command runs again."""
    count = ("sh", "-c", f"echo x >> {tmp_path}/ran; wc -l < {tmp_path}/ran")
    refuse = ("sh", "-c", f"echo x >> {tmp_path}/refused; exit 1")
    with reading.once():
        assert [run(count, None).strip() for _ in range(3)] == ["1", "1", "1"]
        for _ in range(2):
            with pytest.raises(UnhealthyError, match="exit code 1"):
                run(refuse, None)
    assert (tmp_path / "refused").read_text() == "x\n"
    assert run(count, None).strip() == "2"


def test_other_input_or_another_namespace_is_another_question():
    """`cat` answers what it is given."""
    with reading.once():
        assert [run(("cat",), None, stdin=text) for text in ("a", "b")] == ["a", "b"]
