"""Collect the tests on the machine before a lab boots: what is not found or cannot be imported is said in seconds."""

import re
import subprocess
import sys

import pytest

from c4bench.pytest_plugin.lab_files import WRITTEN
from c4bench.pytest_plugin.start import arguments

_COLLECTED = re.compile(r"(\d+)(?:/\d+)? tests? collected")


def collect(config: pytest.Config) -> tuple[int, int]:
    """Collect with the same command line in a new process: (pytest's exit code, how many tests are chosen).

    What pytest says is passed on where the exit code is not 0. It says how many at one verbosity only, which options
    before cannot change.
    """
    unwritten = [f"{flag}=" for name, flag in WRITTEN.items() if config.getoption(name, None)]
    command = [sys.executable, "-m", "pytest", *arguments(config), "--collect-only", "--verbosity=-1", *unwritten]
    done = subprocess.run(
        command,
        cwd=config.invocation_params.dir,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.stdout.write(done.stdout)
    return done.returncode, chosen(done.stdout)


def chosen(said: str) -> int:
    """How many tests a collection says it has chosen; 0 where it does not say."""
    found = _COLLECTED.findall(said)
    return int(found[-1]) if found else 0
