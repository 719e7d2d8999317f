"""Property tests draw the same examples in every run, and are not timed: the machine's clock judges nothing here.

With `C4BENCH_FRESH_EXAMPLES` set, as at night, they draw other examples each time, and keep those that fail in
`.hypothesis`, where later runs find them.
"""

import gc
import logging
import os
from pathlib import Path

import pytest
from hypothesis import settings
from property_examples import FRESH

# Tests in these folders wait for threads, processes and connections: what they test may hang, and this is how long.
HERE = Path(__file__).parent
WAITING, HANGS_AFTER_S = {"agent", "attach", "collective", "control", "wire", "workload"}, 90
# Pytests that tests start have no property tests, and would import Hypothesis to say so.
os.environ["PYTEST_ADDOPTS"] = "-p no:hypothesispytest"
settings.register_profile("same", derandomize=True, deadline=None, max_examples=25)
settings.register_profile("fresh", deadline=None, print_blob=True)
settings.load_profile("fresh" if FRESH else "same")


@pytest.fixture(autouse=True)
def logging_as_it_was():
    """A command called inside a test configures logging of the test process; undo that."""
    loggers = [logging.getLogger(), logging.getLogger("c4bench")]
    before = [(logger, logger.level, [*logger.handlers]) for logger in loggers]
    yield
    for logger, level, handlers in before:
        logger.setLevel(level)
        for handler in set(logger.handlers) - set(handlers):
            logger.removeHandler(handler)


def pytest_itemcollected(item):
    """End a test that hangs, unless it has a limit of its own."""
    if item.path.relative_to(HERE).parts[0] in WAITING and item.get_closest_marker("timeout") is None:
        item.add_marker(pytest.mark.timeout(HANGS_AFTER_S))


def pytest_collection():
    """Thousands of tests come into being, and stay: to look for garbage among them finds none."""
    gc.disable()


def pytest_collection_finish():
    """Leave the tests themselves out of garbage collections: each master begins with one, each pytest ends with one."""
    gc.enable()
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    """Skip modules that import pyverbs where it is not installed: it comes with the distribution's own Python."""
    report = yield
    error = report.call.excinfo and report.call.excinfo.value.__cause__
    if isinstance(error, ModuleNotFoundError) and error.name.partition(".")[0] == "pyverbs":
        report.outcome, report.longrepr = "skipped", (str(collector.path), 0, "Skipped: pyverbs is not installed")
    return report
