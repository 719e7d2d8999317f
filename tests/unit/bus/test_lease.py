"""Who may take a lease, and how jobs are shared."""

import pytest

from c4bench.bus.lease import HeldLease, Renewals, fair_share


def test_a_lease_ends_when_it_is_not_renewed_or_given_up():
    """A lease may be taken a second after its last renewal, or at once if its holder has given it up."""
    renewals = Renewals(1.0)
    renewals.renewed("job.a", 1, HeldLease("one"), 10.0)
    assert not renewals.ended("job.a", 11.0)
    assert renewals.ended("job.a", 11.1)
    renewals.renewed("job.a", 1, HeldLease("one"), 11.2)
    assert not renewals.ended("job.a", 12.0)
    renewals.renewed("job.a", 1, HeldLease(""), 11.3)
    assert renewals.ended("job.a", 11.3)


def test_nobody_is_late_while_the_observer_was_away():
    """After a lost connection, each lease has its whole time again: its renewals may have been missed."""
    renewals = Renewals(1.0)
    renewals.renewed("job.a", 1, HeldLease("one"), 10.0)
    renewals.restart(20.0)
    assert not renewals.ended("job.a", 20.9)
    assert renewals.ended("job.a", 21.1)


def test_a_lease_that_was_never_seen_has_not_ended():
    """What was never seen is no lease that has ended, and has no holder."""
    renewals = Renewals()
    assert not renewals.ended("job.a", 99.0)
    assert (renewals.holder("job.a"), renewals.revision("job.a")) == ("", 0)


def test_detectors_that_are_there_hold_their_lease():
    """Those count as there that have renewed in time and not left."""
    renewals = Renewals(1.0)
    for name, seen_s in (("a", 10.0), ("b", 8.0)):
        renewals.renewed(f"detector.{name}", 1, HeldLease(name), seen_s)
    renewals.renewed("detector.c", 1, HeldLease(""), 10.0)
    renewals.renewed("job.x", 1, HeldLease("a"), 10.0)
    assert renewals.live("detector.", 10.5).keys() == {"detector.a"}


@pytest.mark.parametrize(("jobs", "detectors", "share"), [(0, 2, 0), (4, 2, 2), (5, 2, 3), (1, 9, 1), (3, 0, 3)])
def test_a_share_is_fair_and_all_shares_hold_all_jobs(jobs, detectors, share):
    """No detector has more than one job more than it must, and no job is left over."""
    assert fair_share(jobs, detectors) == share
    assert share * max(1, detectors) >= jobs
