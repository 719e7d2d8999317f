"""What an ordinary login is like: a home that is its owner's alone, and a thousand open files."""

import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
UNSHARE = ("unshare", "--user", "--map-root-user", "--mount", "--")
SCENARIO = "tests/scenarios/c4d/test_faults.py::test_slow_rank"
LOGIN = """\
set -e
mkdir -m 700 "$1"
mkdir "$1/c4bench"
mount --bind "$2" "$1/c4bench"
cd "$1/c4bench"
ulimit -S -n 1024
exec "$1/c4bench/$3" -m pytest --hosts=softroce --c4-run-dir="$4" "$5"
"""


def test_lab_from_a_private_home_with_few_open_files(tmp_path):
    """Agents and ranks, who are not the owner, run from such a checkout, and eight hosts' files can be open."""
    home, python = tmp_path / "home", Path(sys.executable).relative_to(REPOSITORY)
    told = [str(home), str(REPOSITORY), str(python), str(tmp_path / "run"), SCENARIO]
    done = subprocess.run([*UNSHARE, "bash", "-c", LOGIN, "login", *told], capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    assert "1 passed" in done.stdout
