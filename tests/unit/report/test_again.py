"""The commands of a report run the same tests with the same options and seed."""

import shlex

import pytest

from c4bench.record import RunDirectory
from c4bench.record.provenance import collect
from c4bench.report.again import nodes, repeat_run, repeat_scenario

NODE = "tests/scenarios/c4p/test_plan.py::test_it[a b]"


def made(*command, seed=7):
    return collect(name="n", started_at="", command=command, seed=seed, backend="", topology="", clock="virtual")


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["pytest", "--hosts", "softroce", "-m", "not nightly", "tests/scenarios/c4p", "tests/scenarios/hosts"],
         ["pytest", "--hosts", "softroce", "-m", "not nightly", NODE, "--c4-seed", "7"]),
        (["pytest", "--hosts=h.yml", "tests/scenarios/c4p/test_plan.py::test_other", "--c4-seed", "3"],
         ["pytest", "--hosts=h.yml", "--c4-seed", "3", NODE]),
        (["pytest", "tests", "--c4-topology", "tests/scenarios/verbs/dscp.yml"],
         ["pytest", "--c4-topology", "tests/scenarios/verbs/dscp.yml", NODE, "--c4-seed", "7"]),
        (["pytest", "--ignore", "tests/c4p/test_x.py", "--deselect=tests/a.py::b", "--c4-run-dir", "reports/runs/x"],
         ["pytest", NODE, "--c4-seed", "7"]),
    ],
)  # fmt: skip
def test_a_row_can_be_run_alone(command, expected):
    """Tests give way to the one of the row; options, topology and seed stay; where the run was written does not."""
    assert shlex.split(repeat_scenario(made(*command), NODE)) == expected


@pytest.mark.parametrize(
    "where",
    [["--c4-run-dir=nights/x"], ["--c4-run-dir", "nights/x"], ["--c4-resume", "--c4-run-dir=a"], ["--junitxml=j"]],
)
def test_a_run_is_repeated_elsewhere(where):
    """The command of all tests writes to a new run, not to the one that it repeats, nor over files beside it."""
    command = made("pytest", "--hosts=h.yml", *where, "tests/scenarios", "-m", "not nightly")
    again = ["pytest", "--hosts=h.yml", "tests/scenarios", "-m", "not nightly", "--c4-seed", "7"]
    assert shlex.split(repeat_run(command)) == again


def test_the_node_of_a_scenario_is_known(tmp_path):
    """A scenario's node is found in the run's events; one that never ended has none."""
    run = RunDirectory.create(tmp_path, "r")
    run.event(0.0, "ended", scenario="plan.it", node=NODE, passed=True, duration_s=1.0)
    run.event(0.0, "scenario", scenario="plan.other", outcome="skip", reason="no-rdma")
    assert nodes(run) == {"plan.it": NODE}
