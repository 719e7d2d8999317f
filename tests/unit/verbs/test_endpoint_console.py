"""The endpoint console answers every command."""

import io
import json

import msgspec
import pytest

from c4bench.errors import UsageError
from c4bench.model.fabric import Nic
from c4bench.verbs import endpoint_console

NIC = msgspec.json.encode(Nic("h0", 0, "nosuch_0", "lo", "127.0.0.1", 1e10)).decode()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "truncated"),
        ('{"do": "dance"}', "dance"),
        ('{"do": "open", "waiting": "fast"}', "nosuch_0"),
        ('{"do": "find"}', "no RDMA port has address 127.0.0.1"),
    ],
)
def test_errors_are_answers(line, said):
    """An invalid command and a failing one are answered in one line, and the next command runs."""
    answers = io.StringIO()
    endpoint_console.main([NIC], io.StringIO(f"{line}\n{line}\n"), answers)
    found = [json.loads(answer) for answer in answers.getvalue().splitlines()]
    assert len(found) == 2
    assert said in found[0]["error"]


def test_the_nic_is_needed():
    """Without a NIC the console's error names its arguments."""
    with pytest.raises(UsageError, match="as one argument"):
        endpoint_console.main([], io.StringIO(), io.StringIO())
