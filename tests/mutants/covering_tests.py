"""Which test files run which lines of c4bench, and how long each takes: found by running each once, alone."""

import time
from collections.abc import Iterable
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from coverage import CoverageData, CoverageException
from mutation_sites import PACKAGES

_LIMIT_S = 200.0
# For one mutant, in seconds of an unbroken run: those first that run most of its module for their time.
_TESTS_S = 60.0
_SETTINGS = "[run]\nsource_pkgs = c4bench\nparallel = true\npatch =\n  subprocess\n  fork\n  _exit\n"


class TestFile(NamedTuple):
    """A test file that passes: what it ran, by module, and how long that took with coverage."""

    __test__ = False

    path: str
    seconds: float
    lines: dict[str, frozenset[int]]


def candidates(root):
    """The unit tests of the mutated packages: those in their folders, and those that import one of them."""
    found = sorted((root / "tests/unit").rglob("test_*.py"))
    return [str(path.relative_to(root)) for path in found if _belongs(path, path.read_text())]


def run_alone(tree, path):
    """Run a test file of a tree on unbroken code; None where it fails or takes minutes."""
    folder = tree.scratch("coverage")
    (folder / "settings").write_text(_SETTINGS)
    recorder = ("-m", "coverage", "run", f"--rcfile={folder / 'settings'}", f"--data-file={folder / 'data'}")
    code, seconds = _timed(tree, path, recorder)
    if code:  # tests that race with a clock may fail only because lines are counted
        code, seconds = _timed(tree, path)
    return None if code != 0 else TestFile(path, seconds, _lines(folder.glob("data.*"), tree.root))


def _timed(tree, path, recorder=()):
    began = time.monotonic()
    code = tree.pytest([path], _LIMIT_S, recorder, to_the_end=bool(recorder))
    return code, time.monotonic() - began


def covering(mutant, files):
    """The test files to run for a mutant: those that run its lines, the most thorough for their time, for a minute.

    What runs at import runs in every test that imports the module. For that, those are taken that run a function of it.
    """
    run = {file.path: file.lines.get(mutant.path, frozenset()) for file in files}
    wanted = _inside(mutant, run.values())
    fitting = [file for file in files if run[file.path] & wanted]
    fitting.sort(key=lambda file: -len(run[file.path]) / file.seconds)
    ends_s = accumulate(file.seconds for file in fitting)
    return [file for file, end_s in zip(fitting, ends_s, strict=True) if end_s - file.seconds < _TESTS_S]


def _inside(mutant, runs: Iterable[frozenset[int]]):
    own = set(range(mutant.first, mutant.last + 1))
    if not mutant.at_import:
        return own
    runs = [lines for lines in runs if lines]
    called = frozenset().union(*runs).difference(frozenset.intersection(*runs)) if runs else frozenset()
    return called or own


def _lines(data_files: Iterable[Path], root):
    lines: dict[str, frozenset[int]] = {}
    for path in data_files:
        data = CoverageData(basename=str(path))
        try:
            data.read()
        except CoverageException:
            continue  # its process was killed while it wrote
        for file in data.measured_files():
            if Path(file).is_relative_to(root):
                name = str(Path(file).relative_to(root))
                lines[name] = lines.get(name, frozenset()) | frozenset(data.lines(file) or ())
    return lines


def _belongs(path, text):
    return path.parent.name in PACKAGES or any(f"c4bench.{name}" in text for name in PACKAGES)
