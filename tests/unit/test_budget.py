"""What a source may bring is counted, and bounded."""

import pytest

from c4bench.budget import Account, Budget, OverBudgetError

SMALL = Budget(bytes=10, records=2, names=1, seconds=5.0)


def test_what_is_over_the_budget_is_refused_and_not_counted():
    """A source that asked for too much still has what was left."""
    account = Account("agent of h1", SMALL)
    account.spend(bytes=8, records=1)
    with pytest.raises(OverBudgetError, match="agent of h1: more than 10 bytes"):
        account.spend(bytes=3)
    account.spend(bytes=2)
    with pytest.raises(OverBudgetError, match="names"):
        account.spend(records=1, names=2)
    assert account.records == 1


def test_what_is_given_back_may_be_taken_again():
    """Calls that have ended make room for others."""
    account = Account("agent of h1", SMALL)
    for _ in range(100):
        account.spend(bytes=10)
        account.give_back(bytes=10)
    assert account.bytes == 0


def test_time_is_bounded_too():
    """Nobody is waited for without end."""
    now = [0.0]
    account = Account("switch leaf0", SMALL, lambda: now[0])
    now[0] = 5.0
    account.check_time()
    now[0] = 5.1
    with pytest.raises(OverBudgetError, match="seconds"):
        account.check_time()
