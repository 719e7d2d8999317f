"""Messages by which an operator follows a job; see `messages`."""

import msgspec

from c4bench.wire.messages import Result, Seconds


class QueryProgress(msgspec.Struct, frozen=True):
    """Operator to master: what a job's ranks have reported in `attempt`, from report number `first` on.

    Answered once there is a new report, more than `ended` ranks have ended, another attempt runs, or after `timeout_s`.
    Of another attempt than the named one, everything is returned.
    """

    job: str
    attempt: str = ""
    first: int = 0
    ended: int = 0
    timeout_s: Seconds = 0.0


class Progress(msgspec.Struct, frozen=True):
    """The present attempt of a job: new reports in the order of arrival, and the exit codes of ranks that have ended.

    A negative code is a signal's number. `first` is the number of the next report; the oldest may no longer be kept.
    """

    attempt: str
    ranks: int
    reports: tuple[Result, ...]
    exits: dict[int, int]
    first: int = 0
