"""The pytest command that runs in the lab: the user's, with the lab's inventory, certificates and run directory."""

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from c4bench.errors import UsageError
from c4bench.lab.machine import launch
from c4bench.lab.spec import INVENTORY
from c4bench.pytest_plugin.start import arguments


def lab_command(config: pytest.Config, run_directory: Path, clock: str, more: Sequence[str]) -> list[str]:
    """The words of the command; `more` are options that come after the user's, and so take their place."""
    given = [*shlex.split(os.environ.get("PYTEST_ADDOPTS", "")), *_located(arguments(config), config)]
    return [
        sys.executable,
        "-m",
        "pytest",
        *_without_hosts(given),
        f"--rootdir={config.rootpath}",
        *([f"--config-file={config.inipath}"] if config.inipath else []),
        f"--hosts={INVENTORY}",
        f"--c4-run-dir={run_directory.resolve()}",
        f"--c4-trust={launch.trust_directory(run_directory)}",
        f"--c4-time={clock}",
        "--c4-allow-disruptive",
        "--c4-reserve=0",  # a lab is nobody else's
        f"--color={'yes' if sys.stdout.isatty() else 'no'}",
        *more,
    ]


def debugs(config: pytest.Config, clock: str) -> bool:
    """Whether a debugger is asked for. Raises UsageError where it could not be used."""
    asked = [flag for name, flag in (("usepdb", "--pdb"), ("trace", "--trace")) if config.getoption(name, False)]
    if not asked:
        return False
    if clock == "virtual":
        raise UsageError(f"{asked[0]}: a lab in virtual time has no terminal to debug at; add --c4-time=real")
    capture = config.pluginmanager.getplugin("capturemanager")
    if capture:
        capture.suspend_global_capture(in_=True)  # pytest has put a file in place of our input
    if not sys.stdin.isatty() or not sys.stdout.isatty():
        raise UsageError(f"{asked[0]}: a debugger needs a terminal, and this run has none; leave it out")
    return True


def _without_hosts(words: Sequence[str]) -> list[str]:
    kept = []
    skip = False
    for word in words:
        if not skip and word != "--hosts" and not word.startswith("--hosts="):
            kept.append(word)
        skip = word == "--hosts"
    return kept


def _located(words: Sequence[str], config: pytest.Config) -> list[str]:
    """Paths of tests from the root on: our working directory may have another name in the lab than beside them.

    Words that name no file here are left as they are: options, and modules after `--pyargs`.
    """
    here = config.invocation_params.dir
    named = set(config.args) if config.args_source is pytest.Config.ArgsSource.ARGS else set()
    return [str(here / word) if word in named and (here / word.partition("::")[0]).exists() else word for word in words]
