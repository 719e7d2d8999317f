"""Property tests draw the same examples in every run, and are not timed: the machine's clock judges nothing here."""

import logging

import pytest
from hypothesis import settings

settings.register_profile("c4bench", derandomize=True, deadline=None)
settings.load_profile("c4bench")


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


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    """Skip modules that import pyverbs where it is not installed: it comes with the distribution's own Python."""
    report = yield
    error = report.call.excinfo and report.call.excinfo.value.__cause__
    if isinstance(error, ModuleNotFoundError) and error.name.partition(".")[0] == "pyverbs":
        report.outcome, report.longrepr = "skipped", (str(collector.path), 0, "Skipped: pyverbs is not installed")
    return report
