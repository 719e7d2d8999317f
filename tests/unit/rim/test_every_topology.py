"""`make every-topology` fails for a scenario that no topology has carried."""

import subprocess
import sys
from pathlib import Path

import pytest

from c4bench.model.measurement import Outcome
from c4bench.record import RunDirectory, begin

SCRIPT = Path(__file__).parents[2] / "scenarios/every_topology.py"


@pytest.mark.parametrize(("second", "code", "says"), [(Outcome.PASS, 0, "0 ran"), (Outcome.SKIP, 1, "1 ran")])
def test_a_scenario_that_ran_nowhere_is_an_error(tmp_path, second, code, says):
    """A scenario that one topology skips has to run on another."""
    for name, outcome in ("pair", Outcome.SKIP), ("clos-2x4", second):
        rest = {"command": ["pytest"], "seed": 1, "backend": "softroce", "topology": name, "clock": "virtual"}
        run: RunDirectory = begin(tmp_path / name, "main", **rest)
        run.finish_scenario("planes.both", outcome, "one-plane")
        run.finish_scenario("exact.ring", Outcome.PASS)
    argv = [sys.executable, str(SCRIPT), *map(str, tmp_path.iterdir())]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert f"2 scenarios, {says} on no topology" in done.stdout
