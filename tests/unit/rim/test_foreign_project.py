"""The pytest plugin in a project that does not use c4bench, and in one that does."""

import os
import subprocess
import sys

import pytest

ASKS = "[pytest]\nc4_fixtures = true\n"
OTHERS_OPTION = "def pytest_addoption(parser): parser.addoption('--hosts', help='of another tool')\n"


def run(folder, test, settings="[pytest]\n", conftest="", words=()):
    """Run one test file in a new project; return the exit code and the output."""
    (folder / "test_it.py").write_text(test)
    (folder / "pytest.ini").write_text(settings)
    (folder / "conftest.py").write_text(conftest)
    argv = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", *words]
    done = subprocess.run(argv, cwd=folder, env=os.environ, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("fixture", ["job", "inject", "hosts", "measure"])
def test_a_missing_fixture_is_an_error(tmp_path, fixture):
    """A project that does not ask for c4bench gets pytest's own error for a fixture it lacks, never a skip."""
    code, output = run(tmp_path, f"def test_it({fixture}): pass\n")
    assert code == 1
    assert f"fixture '{fixture}' not found" in output


def test_a_misspelt_fixture_is_an_error(tmp_path):
    """In a project that asks for c4bench, only c4bench's fixtures skip without hosts; a typo fails."""
    code, output = run(tmp_path, "def test_a(measure): pass\ndef test_b(mesure): pass\n", ASKS)
    assert code == 1
    assert "fixture 'mesure' not found" in output
    assert "no-hosts: give --hosts=inventory.yml" in output


@pytest.mark.parametrize("settings", ["[pytest]\n", ASKS], ids=["foreign", "asking"])
def test_another_tool_has_the_option_hosts(tmp_path, settings):
    """`--hosts` of a conftest or another plugin works, whether the project asks for c4bench or not."""
    (tmp_path / "hosts.yml").write_text("all: {hosts: {here: {ansible_connection: local}}}")
    test = "def test_it(pytestconfig): assert pytestconfig.getoption('--hosts') == 'hosts.yml'\n"
    words = ("--hosts=hosts.yml", *(("--c4-run-dir=run",) if settings == ASKS else ()))
    code, output = run(tmp_path, test, settings, OTHERS_OPTION, words)
    assert code == 0, output


def test_hosts_without_the_setting(tmp_path):
    """`--hosts` in a project that does not ask for c4bench is a usage error that names the setting and the file."""
    code, output = run(tmp_path, "def test_it(): pass\n", words=["--hosts=softroce"])
    assert code == 2
    assert f"write `c4_fixtures = true` in {tmp_path / 'pytest.ini'}" in output
