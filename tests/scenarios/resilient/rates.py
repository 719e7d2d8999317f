"""Durations of a trial's operations."""

import statistics


def durations(accounts):
    """How long each operation took: its slowest rank's time."""
    spans = [[ended - began for began, ended in each.spans] for each in accounts]
    return [max(took) for took in zip(*spans, strict=True)]


def default_split(accounts):
    """The median operation, all exact and none failed."""
    assert [each.error for each in accounts if each.error] == []
    assert all(each.exact == each.checked for each in accounts)
    return statistics.median(durations(accounts)[1:])
