"""Try mutants, each in a copy of the tree: the working tree is never changed."""

import os
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from queue import SimpleQueue
from typing import NamedTuple

from covering_tests import candidates, covering, run_alone

_LEFT_OUT = (".git", ".venv*", ".hypothesis", ".*_cache", "__pycache__", "runs", ".make", "dist")
# Tests may be this much slower than without a mutant on a quiet machine, before they count as hanging.
_SLOWER = 3.0
_START_S = 30.0
_MEMORY_BYTES = 8 << 30


class MutantResult(StrEnum):
    """What became of a mutant."""

    KILLED = "killed"
    SURVIVED = "survived"
    TIMED_OUT = "timed out"


class Tree:
    """A copy of the repository in a folder of its own, with compiled code that is checked by content, not by time."""

    def __init__(self, source, folder):
        self.root, self._scratch = folder / "tree", folder / "scratch"
        shutil.copytree(source, self.root, ignore=shutil.ignore_patterns(*_LEFT_OUT))
        compiler = [sys.executable, "-m", "compileall", "-q", "--invalidation-mode=checked-hash", self.root / "c4bench"]
        subprocess.run(compiler, check=True)

    def scratch(self, name):
        """A new folder outside the copy; the one of this name before is gone."""
        folder = self._scratch / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder

    def pytest(self, files, limit_s, recorder=(), *, to_the_end=False):
        """Run test files, up to the first failure unless `to_the_end`: the exit code, None where that took too long.

        Nothing that a mutant starts or kills is outside a PID namespace of its own, nor has it all of the memory.
        """
        command = [
            *("unshare", *_user_namespace(), "--pid", "--fork", "--kill-child", "--mount-proc"),
            *("prlimit", f"--as={_MEMORY_BYTES}", sys.executable, *recorder),
            *("-m", "pytest", "-q", "--tb=no", "--assert=plain", "-p", "no:cacheprovider", "-m", "not nightly"),
            *(() if to_the_end else ("-x",)),
            *(f"--basetemp={self.scratch('temporary')}", *files),
        ]
        environment = os.environ | {"PYTHONPATH": str(self.root), "PYTHONDONTWRITEBYTECODE": "1"}
        process = subprocess.Popen(
            command,
            cwd=self.root,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            return process.wait(limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return None


class Trial(NamedTuple):
    """A mutant and what became of it; `files` is how many test files run its lines."""

    mutant: object
    result: MutantResult
    files: int


def attempt(tree, mutant, files):
    """Put a mutant into a tree, run the test files on it, and take it out again."""
    chosen = covering(mutant, files)
    if not chosen:
        return Trial(mutant, MutantResult.SURVIVED, 0)
    module = tree.root / mutant.path
    unbroken = module.read_text()
    module.write_text(mutant.text)
    try:
        limit_s = _START_S + _SLOWER * sum(file.seconds for file in chosen)
        code = tree.pytest([file.path for file in chosen], limit_s)
    finally:
        module.write_text(unbroken)
    result = MutantResult.TIMED_OUT if code is None else MutantResult.KILLED if code else MutantResult.SURVIVED
    return Trial(mutant, result, len(chosen))


class Trials:
    """Trees and a process for each: `each` yields a function's results, in the order in which they are ready."""

    def __init__(self, source, folder, processes=2):
        self._source, self._processes = source, processes
        self._trees = SimpleQueue()
        for number in range(processes):
            self._trees.put(Tree(source, folder / str(number)))

    def test_files(self):
        """The test files that pass on unbroken code, and the names of those that do not."""
        paths = candidates(self._source)
        ran = list(self._each(run_alone, paths))
        return [file for file in ran if file], [path for path, file in zip(paths, ran, strict=True) if not file]

    def attempts(self, mutants, files):
        """A trial of each mutant, in order, as soon as it is known."""
        return self._each(lambda tree, mutant: attempt(tree, mutant, files), mutants)

    def _each(self, work, items):
        def with_tree(item):
            tree = self._trees.get()
            try:
                return work(tree, item)
            finally:
                self._trees.put(tree)

        with ThreadPoolExecutor(self._processes) as pool:
            yield from pool.map(with_tree, items)


def _user_namespace():
    return () if os.geteuid() == 0 else ("--user", "--map-current-user")
