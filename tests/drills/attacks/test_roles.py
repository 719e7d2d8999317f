"""An inventory whose host would be a role: no name gets the operator's key, the authority, or a file elsewhere."""

import subprocess
import sys

import pytest

from c4bench.model.measurement import Clock, Outcome
from c4bench.record import Ledger


@pytest.mark.parametrize("name", ["operator", "master", "ca", "observer", "../../evil"])
def test_a_host_cannot_be_called_like_a_role_or_a_path(drills, request, tmp_path, name):
    """Preparing the deployment is refused in one line, and no file is made or changed."""
    (tmp_path / "hosts.yml").write_text(f"all: {{hosts: {{h1: {{}}, '{name}': {{}}}}}}")
    before = set(tmp_path.parent.rglob("*"))
    argv = [sys.executable, "-m", "c4bench.deploy.prepare", str(tmp_path / "hosts.yml"), str(tmp_path / "conf")]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    new = set(tmp_path.parent.rglob("*")) - before
    holds = done.returncode == 2 and done.stderr.count("\n") == 1 and not new
    ledger = Ledger(drills, request.node.nodeid)
    taken = ledger.measure("attack.refused_fraction", float(holds), "1", equals=1, clock=Clock.NONE, how=name)
    assert taken.outcome is Outcome.PASS, done.stderr
