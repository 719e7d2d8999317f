"""The errors a user sees: what happened, where, and what to do, in one line."""

import logging
from collections.abc import Awaitable, Callable, Iterable

_logger = logging.getLogger(__name__)


class C4Error(Exception):
    """A failure the user can act on; the rim prints it in one line and exits with `exit_code`."""

    exit_code = 1

    @property
    def each(self) -> tuple[str, ...]:
        """What is wrong, a line for each thing."""
        return (str(self),)


class UsageError(C4Error):
    """The input is wrong: a file, an option, a name, a value. Nothing has been touched."""

    exit_code = 2


class CombinedUsageError(UsageError):
    """Several things are wrong with the input; `problems` are about one each."""

    def __init__(self, problems: Iterable[str]) -> None:
        self._problems = tuple(dict.fromkeys(problems))
        super().__init__("\nc4bench: ".join(self._problems))

    @property
    def each(self) -> tuple[str, ...]:
        """The problems, each once."""
        return self._problems


class UnhealthyError(C4Error):
    """The lab or a host cannot do what is needed."""

    exit_code = 3


class AbsentHostsError(UnhealthyError):
    """Hosts do not answer; `hosts` are their names."""

    def __init__(self, hosts: Iterable[str], what: str) -> None:
        self.hosts = tuple(hosts)
        super().__init__(f"{', '.join(self.hosts)}: {what}")


class PathsRefusedError(UnhealthyError):
    """No path can be chosen on this fabric."""


class InconclusiveError(C4Error):
    """The run says nothing: a fault was not seen to take effect."""

    exit_code = 4


def report_bug(message: str, failure: BaseException | None) -> None:
    """Report a bug of ours to the running event loop, which logs its traceback and goes on."""
    from asyncio import get_running_loop  # noqa: PLC0415  (programs without a loop do not load it)

    get_running_loop().call_exception_handler({"message": message, "exception": failure, "bug": True})


class RepeatedFailures:
    """Reports errors in work that is done again and again; one that is like the last, ten times a second, only once.

    `report` gets a message and the error; it may raise.
    """

    def __init__(self, report: Callable[[str, Exception], None] = report_bug) -> None:
        self._report = report
        self._last = ""

    def note(self, what: str, failure: Exception) -> None:
        """Report that `what` failed."""
        message = f"{what}: {type(failure).__name__}: {failure}"
        if message != self._last:
            self._last = message
            self._report(message, failure)


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


def meant(given: str, known: Iterable[str], otherwise: str = "") -> str:
    """The known name that was probably meant, as the end of a sentence; `otherwise` where none is near."""
    from difflib import get_close_matches  # noqa: PLC0415  (seldom needed, and it takes memory)

    near = get_close_matches(given, list(known), n=1, cutoff=0.5)
    return f"; did you mean {near[0]}?" if near else otherwise
