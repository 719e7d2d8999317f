"""What a run takes to begin and to end."""

import subprocess
import sys

DEAR = {"numpy", "cryptography", "c4bench.control.master", "c4bench.evidence.judging.judge"}
CONFTEST = f"""\
import sys
def pytest_unconfigure():
    print("imported:", sorted({DEAR} & set(sys.modules)))
"""


def test_a_run_that_starts_no_job_imports_no_master(tmp_path):
    """What only jobs, labs and files of other tools need takes longer to import than all else: it is left out."""
    (tmp_path / "hosts.yml").write_text("all: {hosts: {here: {ansible_connection: local}}}")
    (tmp_path / "test_it.py").write_text("def test_it(hosts, measure): measure('speed', 1.0, unit='1', at_least=1)\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\nc4_fixtures = true\n")
    (tmp_path / "conftest.py").write_text(CONFTEST)
    words = "-m", "pytest", "--hosts=hosts.yml", "--c4-reserve=0"
    done = subprocess.run([sys.executable, *words], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "c4bench: report " in done.stdout
    assert "imported: []" in done.stdout
