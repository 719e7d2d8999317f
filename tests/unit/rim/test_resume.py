"""A run that is resumed after its end."""

pytest_plugins = "pytester"  # to run pytest within this process, which is faster, but holds its run directory


def test_a_run_with_nothing_left_over_is_a_good_one(pytester):
    """All has passed already, so nothing is run and the exit code is 0; pytest's 5 where nothing was chosen."""
    (pytester.path / "hosts.yml").write_text("all: {hosts: {here: {ansible_connection: local}}}")
    (pytester.path / "test_it.py").write_text("def test_it(measure): measure('speed', 1.0, unit='1', at_least=1)\n")
    (pytester.path / "pytest.ini").write_text("[pytest]\nc4_fixtures = true\n")

    words = "--hosts=hosts.yml", "--c4-reserve=0", "--c4-run-dir=run"
    pytester.runpytest_subprocess(*words).stdout.fnmatch_lines("*speed = 1*")
    resumed = pytester.runpytest_subprocess(*words, "--c4-resume")
    resumed.stdout.fnmatch_lines("*1 deselected*")
    assert resumed.ret == 0
    assert pytester.runpytest_inprocess(*words, "--c4-resume", "-k", "nothing").ret == 5
