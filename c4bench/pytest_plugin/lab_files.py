"""Files that pytest writes in a lab come out of it: those the user asked for, and its cache of failed tests."""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import pytest

from c4bench.errors import UnhealthyError, UsageError

# By the name under which pytest, or pytest-reportlog, keeps the option: the options that name a file to write.
WRITTEN = {"xmlpath": "--junitxml", "report_log": "--report-log", "log_file": "--log-file"}
_TIMESTAMP = re.compile(r'timestamp="[^"]*"')
# What --lf, --ff, --nf and --stepwise read from pytest's cache (pytest: "How to re-run failed tests").
_VALUES = "v"  # the folder of values in a cache's folder
_CACHED = ("cache/lastfailed", "cache/nodeids", "cache/stepwise")


@contextmanager
def carried(config: pytest.Config, folder: Path) -> Iterator[list[str]]:
    """The words by which a pytest in the lab writes to `folder`, which the lab may write to, instead of the machine.

    After the block the files are where the user wants them, also those of a lab that had to be ended. Raises UsageError
    for a file that cannot be written, before anything is started.
    """
    wanted = _wanted(config)
    for path in wanted.values():
        _check(path)
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "cache").mkdir(parents=True)
    cache, began = _cache(config), datetime.now().astimezone().isoformat()
    try:
        if cache and not config.getoption("cacheclear"):
            _copy(cache, folder / "cache")
        words = [f"{flag}={_inside(folder, flag)}" for flag in wanted]
        yield [*words, *(["-o", f"cache_dir={folder / 'cache'}"] if cache else [])]
    finally:
        if "--junitxml" in wanted:
            _date(_inside(folder, "--junitxml"), began)
        for flag, path in wanted.items():
            _bring_out(_inside(folder, flag), path)
        if cache:
            _copy(folder / "cache", cache)
        shutil.rmtree(folder, ignore_errors=True)


def _wanted(config: pytest.Config) -> dict[str, Path]:
    """By option: the file that the user asked for."""
    named = {flag: config.getoption(name, None) for name, flag in WRITTEN.items()}
    return {flag: config.invocation_params.dir / Path(path).expanduser() for flag, path in named.items() if path}


def _inside(folder: Path, flag: str) -> Path:
    return folder / flag.removeprefix("--")


def _check(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("ab").close()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; name a file that can be written") from None


def _date(report: Path, began: str) -> None:
    """Write the machine's date into a JUnit report, which has that of the lab's clock."""
    if report.exists():
        report.write_text(_TIMESTAMP.sub(f'timestamp="{began}"', report.read_text(), count=1))


def _bring_out(written: Path, path: Path) -> None:
    if not written.exists():  # the lab was ended before pytest wrote it
        return
    try:
        shutil.copyfile(written, path)
    except OSError as error:
        raise UnhealthyError(f"{path}: {error.strerror}; make room there, and run again") from None


def _cache(config: pytest.Config) -> Path | None:
    """The folder of pytest's cache; None under `-p no:cacheprovider`. The cache itself is made later than a lab."""
    if not config.pluginmanager.hasplugin("cacheprovider"):
        return None
    folder: str = config.getini("cache_dir")
    return config.rootpath / os.path.expandvars(folder)


def _copy(source: Path, target: Path) -> None:
    """Copy the values that there are from one cache's folder to another's."""
    for key in _CACHED:
        value = source / _VALUES / key
        if value.exists():
            place = target / _VALUES / key
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(value, place)
