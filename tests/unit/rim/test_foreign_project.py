"""The pytest plugin in a project that does not use c4bench, and in one that does."""

import pytest

pytest_plugins = "pytester"  # to run pytest within this process, which is faster
ASKS = "[pytest]\nc4_fixtures = true\n"
OTHERS_OPTION = "def pytest_addoption(parser): parser.addoption('--hosts', help='of another tool')\n"


@pytest.fixture
def run(pytester):
    """Run one test file in a new project: the exit code and the output."""

    def call(test, settings="[pytest]\n", conftest="", words=()):
        files = {"test_it.py": test, "pytest.ini": settings, "conftest.py": conftest}
        for name, text in files.items():
            (pytester.path / name).write_text(text)
        done = pytester.runpytest_inprocess("-q", "-rs", "-p", "no:cacheprovider", *words)
        return int(done.ret), done.stdout.str() + done.stderr.str()

    return call


@pytest.mark.parametrize("fixture", ["job", "inject", "hosts", "measure"])
def test_a_missing_fixture_is_an_error(run, fixture):
    """A project that does not ask for c4bench gets pytest's own error for a fixture it lacks, never a skip."""
    code, output = run(f"def test_it({fixture}): pass\n")
    assert code == 1
    assert f"fixture '{fixture}' not found" in output


def test_a_misspelt_fixture_is_an_error(run):
    """In a project that asks for c4bench, only c4bench's fixtures skip without hosts; a typo fails."""
    code, output = run("def test_a(measure): pass\ndef test_b(mesure): pass\n", ASKS)
    assert code == 1
    assert "fixture 'mesure' not found" in output
    assert "no-hosts: give --hosts=inventory.yml" in output


@pytest.mark.parametrize("settings", ["[pytest]\n", ASKS], ids=["foreign", "asking"])
def test_another_tool_has_the_option_hosts(run, pytester, settings):
    """`--hosts` of a conftest or another plugin works, whether the project asks for c4bench or not."""
    (pytester.path / "hosts.yml").write_text("all: {hosts: {here: {ansible_connection: local}}}")
    test = "def test_it(pytestconfig): assert pytestconfig.getoption('--hosts') == 'hosts.yml'\n"
    words = ("--hosts=hosts.yml", *(("--c4-run-dir=run",) if settings == ASKS else ()))
    code, output = run(test, settings, OTHERS_OPTION, words)
    assert code == 0, output


def test_hosts_without_the_setting(pytester):
    """`--hosts` in a project that does not ask for c4bench is a usage error that names the setting and the file."""
    (pytester.path / "pytest.ini").write_text("[pytest]\n")
    done = pytester.runpytest_subprocess("--hosts=softroce")
    assert done.ret == 2
    assert f"write `c4_fixtures = true` in {pytester.path / 'pytest.ini'}" in done.stderr.str()


PROPERTY = "from hypothesis import given, strategies\n@given(strategies.none())\ndef test_it(x): pass\n"


@pytest.mark.parametrize(("test", "used"), [("def test_it(): pass\n", False), (PROPERTY, True)])
def test_hypothesis_is_imported_by_its_users_only(pytester, test, used):
    """Hypothesis' plugin imports all of it for its summary: no run of tests that do without it waits for that."""
    pytester.makeini(ASKS)
    pytester.makeconftest("import sys\ndef pytest_unconfigure(): print('imported:', 'hypothesis' in sys.modules)\n")
    pytester.makepyfile(test)
    shown = pytester.runpytest_subprocess(*(["--hypothesis-show-statistics"] if used else [])).stdout.str()
    assert f"imported: {used}" in shown
    assert ("during generate phase" in shown) is used
