"""Skips that `--c4-require` makes failures of."""

import pytest

from c4bench.pytest_plugin.scope import required


def skipped(reason):
    return pytest.TestReport("a::b", ("a", 1, "b"), {}, "skipped", ("a", 1, f"Skipped: {reason}"), "setup")


@pytest.mark.parametrize(
    ("reason", "names", "failure"),
    [
        ("no-rdma: 0 of 2 hosts have RDMA", ["rdma"], True),
        ("no-agents: no certificates in /x", ["rdma"], True),
        ("no-agents: no certificates in /x", ["paths", "gpu"], True),
        ("disruptive-not-allowed: give --c4-allow-disruptive", ["disruptive"], True),
        ("no-agents: no certificates in /x", ["gpu"], False),
        ("no-gpu: nvidia-smi lists none", ["rdma"], False),
        ("no-rdma: 0 of 2 hosts have RDMA", [], False),
    ],
)
def test_a_skip_is_a_failure_where_what_it_lacks_is_required(reason, names, failure):
    """RDMA and paths are used through agents: where these are missing, so is what is required."""
    assert required(skipped(reason), names) is failure
