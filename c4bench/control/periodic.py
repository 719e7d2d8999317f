"""Work that the master does again and again: whatever one round meets, the next one follows."""

import logging
from collections.abc import Awaitable, Callable

from c4bench.errors import C4Error, RepeatedFailures, report_bug

_logger = logging.getLogger(__name__)


class Periodic:
    """Runs rounds of work, which messages call `what`. An error that is like the last is reported once."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._failures = RepeatedFailures(_report)
        self._failed = False

    async def round(self, work: Callable[[], Awaitable[None]]) -> bool:
        """Run a round; False if it failed, which has been reported. After one that succeeds, all is reported again."""
        try:
            await work()
        except Exception as failure:
            self._failed = True
            self._failures.note(f"{self._what} failed, and goes on", failure)
            return False
        if self._failed:
            self._failed, self._failures = False, RepeatedFailures(_report)
        return True


def _report(message: str, failure: Exception) -> None:
    """What is wrong with an answer of a host or a switch is a warning, anything else a bug of ours."""
    if isinstance(failure, C4Error | OSError):
        _logger.warning("%s", message)
    else:
        report_bug(message, failure)
