"""Fixed names: what the lab is told of the machine's directories."""

import pytest

from c4bench.lab.places import CODE, ENVIRONMENT, RUN, Place, inside

PLACES = (
    Place("/home/u/c4bench", CODE),
    Place("/home/u/c4bench/.venv", ENVIRONMENT),
    Place("/home/u/c4bench/reports/runs/a", RUN, writable=True),
)


@pytest.mark.parametrize(
    ("told", "heard"),
    [
        ("/home/u/c4bench", "/c4/code"),
        ("/home/u/c4bench/tests/test_a.py::test_b[c]", "/c4/code/tests/test_a.py::test_b[c]"),
        ("--c4-run-dir=/home/u/c4bench/reports/runs/a", "--c4-run-dir=/c4/run"),
        ("/home/u/c4bench/reports/runs/b", "/c4/code/reports/runs/b"),
        ("/home/u/c4bench/.venv/bin:/usr/bin", "/c4/venv/bin:/usr/bin"),
        ("#!/home/u/c4bench/.venv/bin/python\n", "#!/c4/venv/bin/python\n"),
        ("touch /home/u/c4bench/reports/runs/a/x", "touch /c4/run/x"),
    ],
)
def test_the_longest_name_tells_which_directory_is_meant(told, heard):
    """The machine's name of a directory is replaced wherever it stands in a word, that of the innermost one first."""
    assert inside(told, PLACES) == heard


@pytest.mark.parametrize(
    "word",
    ["/home/u/c4bench-2/tests", "/home/u/c4bench.old", "/mnt/home/u/c4bench", "/home/u", "tests/test_a.py", ""],
)
def test_other_paths_stay_as_they_are(word):
    """A name that only begins or ends like a directory's is not its name."""
    assert inside(word, PLACES) == word
