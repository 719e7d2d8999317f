"""Durations of a trial's operations."""

import statistics


def durations(accounts):
    """How long each operation took: from the last rank's beginning to the last rank's end.

    A rank that began before others waits for them. That wait is no part of the operation.
    """
    spans = zip(*(each.spans for each in accounts), strict=True)
    return [max(ended for _, ended in each) - max(began for began, _ in each) for each in spans]


def default_split(accounts):
    """The median operation, all exact and none failed."""
    assert [each.error for each in accounts if each.error] == []
    assert all(each.exact == each.checked for each in accounts)
    return statistics.median(durations(accounts)[1:])
