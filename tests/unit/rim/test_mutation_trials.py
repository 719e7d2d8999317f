"""What tries mutants: which places it breaks, and what it counts as noticed."""

import libcst as cst
import mutation_trials
import pytest
from mutation_sites import Mutant, sample, sites
from mutation_trials import MutantResult, Trials

MODULE = """\
LIMIT = 3


def least(values):
    found = LIMIT
    for value in values:
        if value < found:
            found = value
    return found


def unused(value):
    return value + 1
"""
TEST = "from c4bench.steer.rule import least\ndef test_least(): assert least([5, 2, 4]) == 2\n"
PATH = "c4bench/steer/rule.py"


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository of one module and one test."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # its c4bench has no pytest plugin
    root = tmp_path / "repository"
    for path, text in {PATH: MODULE, "tests/unit/steer/test_rule.py": TEST, "c4bench/__init__.py": ""}.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root


def mutant(was, now):
    line = MODULE[: MODULE.index(was)].count("\n") + 1
    return Mutant(PATH, line, line, line == 1, was, now, MODULE.replace(was, now))


def test_a_seed_gives_the_same_mutants_each_at_a_place_of_its_own(repository):
    """Two samples of a seed are equal, another seed gives others, and each mutant differs from the code in one line."""
    first, count = sample(repository, 6, seed=1)
    assert (first, count) == sample(repository, 6, seed=1)
    assert first != sample(repository, 6, seed=2)[0]
    assert count >= 6 == len(first)
    for one in first:
        lines = zip(MODULE.splitlines(), one.text.splitlines(), strict=True)
        assert [(was.strip(), now.strip()) for was, now in lines if was != now] == [(one.was, one.now)]


def test_every_place_is_sampled_at_most_once(repository):
    """A sample larger than the code has places for has one mutant for each."""
    mutants, count = sample(repository, 1000, seed=1)
    assert len(mutants) == count


@pytest.mark.parametrize(
    ("code", "broken"),
    [
        ('"""A docstring of words."""', 0),
        ("x: Literal['a']", 0),
        ("_logger = logging.getLogger('a')", 0),
        ("_logger.info('sent', 1)", 0),
        ("raise ValueError(f(1))", 0),
        ("assert f(1)", 0),
        ("def f(a: Literal[1]): ...", 0),
        ("@g(1)\ndef f(): ...", 0),
        ("class A(B, frozen=True): ...", 0),
        ("if TYPE_CHECKING:\n    x = 1", 0),
        ("LIMIT_S = 3600.0", 1),  # to None, not to 3601.0
        ("LIMIT_S = 3.0", 2),
        ("zip(a, strict=True)", 1),
        ("say('two words')", 0),
        ("say(f'{a} words', 1)", 2),
        ("send('word')", 2),
    ],
)
def test_what_no_test_is_to_notice_is_not_broken(code, broken):
    """Declarations, texts for people, logs, checks of the code by itself and large numbers are left as they are."""
    assert len(sites(cst.parse_module(code))) == broken


@pytest.mark.nightly
def test_what_a_test_notices_is_killed_what_hangs_is_counted_apart(repository, tmp_path, monkeypatch):
    """A wrong result is killed, what no test sees survives, an endless loop times out; the code itself is untouched."""
    monkeypatch.setattr(mutation_trials, "_START_S", 5.0)
    trials = Trials(repository, tmp_path)
    files, unfit = trials.test_files()
    assert ([file.path for file in files], unfit) == (["tests/unit/steer/test_rule.py"], [])
    mutants = [
        mutant("value < found", "value > found"),
        mutant("value < found", "value <= found"),
        mutant("LIMIT = 3", "LIMIT = 1"),
        mutant("LIMIT = 3", "LIMIT = 4"),
        mutant("return found", "while found: pass"),
        mutant("value + 1", "value - 1"),
        mutant("found = LIMIT", "found ="),
    ]
    results = [(trial.result, trial.files) for trial in trials.attempts(mutants, files)]
    assert results == [
        (MutantResult.KILLED, 1),
        (MutantResult.SURVIVED, 1),
        (MutantResult.KILLED, 1),
        (MutantResult.SURVIVED, 1),
        (MutantResult.TIMED_OUT, 1),
        (MutantResult.SURVIVED, 0),
        (MutantResult.KILLED, 1),
    ]
    assert (repository / PATH).read_text() == MODULE


def test_a_test_that_fails_on_the_code_as_it_is_judges_no_mutant(repository, tmp_path):
    """A failing test file is named and left out, so that it kills nothing."""
    (repository / "tests/unit/steer/test_broken.py").write_text(TEST.replace("== 2", "== 3"))
    trials = Trials(repository, tmp_path)
    files, unfit = trials.test_files()
    assert unfit == ["tests/unit/steer/test_broken.py"]
    (trial,) = trials.attempts([mutant("value + 1", "value - 1")], files)
    assert trial.result is MutantResult.SURVIVED
