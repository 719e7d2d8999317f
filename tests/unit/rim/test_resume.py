"""A run that is resumed after its end."""

import subprocess
import sys


def test_a_run_with_nothing_left_over_is_a_good_one(tmp_path):
    """All has passed already, so nothing is run and the exit code is 0; pytest's 5 where nothing was chosen."""
    (tmp_path / "hosts.yml").write_text("all: {hosts: {here: {ansible_connection: local}}}")
    (tmp_path / "test_it.py").write_text("def test_it(measure): measure('speed', 1.0, unit='1', at_least=1)\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\nc4_fixtures = true\n")

    def run(*words):
        argv = [sys.executable, "-m", "pytest", f"--hosts={tmp_path / 'hosts.yml'}", "--c4-run-dir=run", *words]
        done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout

    code, said = run()
    assert code == 0, said
    assert "speed = 1" in said
    code, said = run("--c4-resume")
    assert code == 0, said
    assert "1 deselected" in said
    assert run("--c4-resume", "-k", "nothing")[0] == 5
