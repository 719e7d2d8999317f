"""A failed scenario's reason is what its error says, and not where it was raised."""

from types import SimpleNamespace

import pytest

from c4bench.errors import UnhealthyError
from c4bench.pytest_plugin.verdicts import failure_message


def reason_of(raised):
    """The reason of a test that ended with this, as pytest itself represents it."""
    try:
        raise raised
    except BaseException as error:
        known = pytest.ExceptionInfo.from_exception(error)
        shown = str(known.value) if isinstance(error, pytest.fail.Exception) and not error.pytrace else known.getrepr()
    return failure_message(SimpleNamespace(longrepr=shown, longreprtext=str(shown)))


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (UnhealthyError("h1: no agent answers; is it deployed?"), "h1: no agent answers; is it deployed?"),
        (KeyError("h1"), "KeyError: 'h1'"),
        (AssertionError("assert 3 == 4\n +  where 3 = f()"), "assert 3 == 4"),
        (pytest.fail.Exception("missed: c4d.alarm_s = 3 s", pytrace=False), "missed: c4d.alarm_s = 3 s"),
        (pytest.fail.Exception("the master is gone"), "the master is gone"),
        (UnhealthyError("x" * 400), "x" * 300),
    ],
)
def test_the_reason_is_the_message(raised, expected):
    """An error for users is its own text; another may have its type before it; no file and no line is named."""
    assert reason_of(raised) == expected
