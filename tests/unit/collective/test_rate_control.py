"""DCQCN's reaction point: cuts, fast recovery and increases of a sender's rate."""

import pytest

from c4bench.collective.pacer import Pacer, RateControl

LINE_BPS, STEP_NS = 10e9, 55_000


def test_a_notification_halves_the_rate_and_fast_recovery_brings_it_back():
    """The first cut is by half; each of the next five timer periods halves the distance to the rate before."""
    control = RateControl(LINE_BPS)
    assert control.rate_bps(0) == LINE_BPS
    control.notified(0)
    assert control.rate_bps(0) == LINE_BPS / 2
    rates = [control.rate_bps(step * STEP_NS) for step in range(1, 6)]
    assert rates == pytest.approx([LINE_BPS * (1 - 2.0 ** -(step + 1)) for step in range(1, 6)])


def test_rare_notifications_cut_less():
    """After a tenth of a second without a notification alpha is small, and so is the next cut."""
    control = RateControl(LINE_BPS)
    control.notified(0)
    later_ns = 100_000_000
    assert control.rate_bps(later_ns) == LINE_BPS
    control.notified(later_ns)
    assert LINE_BPS / 2 < control.rate_bps(later_ns) < LINE_BPS
    assert control.rate_bps(later_ns) == pytest.approx(LINE_BPS * (1 - (1 - 1 / 256) ** 1818 / 2), rel=1e-6)


def test_after_fast_recovery_the_target_rises_slowly():
    """From the sixth period on the target rises by R_AI a period, until the line rate is reached."""
    control = RateControl(LINE_BPS)
    control.notified(0)
    control.notified(0)
    target_bps = LINE_BPS / 2
    rate_bps = control.rate_bps(5 * STEP_NS)
    assert rate_bps < target_bps
    sixth_bps = control.rate_bps(6 * STEP_NS)
    assert sixth_bps == pytest.approx((rate_bps + target_bps + 40e6) / 2)
    assert control.rate_bps(10_000 * STEP_NS) == LINE_BPS


def test_bytes_count_as_periods_do():
    """Ten million bytes are a step of recovery as well; with both counters past five, the target rises faster."""
    control = RateControl(LINE_BPS)
    control.notified(0)
    control.sent(10_000_000)
    assert control.rate_bps(0) == LINE_BPS * 0.75
    slow, fast = RateControl(LINE_BPS), RateControl(LINE_BPS)
    for one in (slow, fast):
        for _ in range(6):
            one.notified(0)
        for step in range(1, 8):
            one.rate_bps(step * STEP_NS)
    fast.sent(70_000_000)
    assert fast.rate_bps(7 * STEP_NS) > slow.rate_bps(7 * STEP_NS) + 40e6


def test_two_senders_share_a_link():
    """Senders that are notified while they send more than the link carries end up near half of it each."""
    senders, now_ns, sums = [RateControl(LINE_BPS), RateControl(LINE_BPS)], 0, []
    senders[0].notified(0)
    queue_bits = 0.0
    for _ in range(20_000):
        now_ns += 50_000
        rates = [sender.rate_bps(now_ns) for sender in senders]
        queue_bits = max(0.0, queue_bits + (sum(rates) - LINE_BPS) * 50e-6)
        if queue_bits > 8 * 100_000:
            for sender in senders:
                sender.notified(now_ns)
        sums.append(rates)
    late = sums[10_000:]
    means = [sum(rates[which] for rates in late) / len(late) for which in (0, 1)]
    assert means == pytest.approx([LINE_BPS / 2] * 2, rel=0.1)


def test_the_pacer_keeps_to_the_controlled_rate():
    """After a cut by half, a message of the line's 400 ns keeps the next one waiting for 800 ns."""
    control = RateControl(LINE_BPS)
    pacer = Pacer(LINE_BPS, 4, control)
    pacer.sent(500, 1000)
    assert pacer.wait_ns(1000) == 400
    pacer.notified(2000)
    pacer.sent(500, 2000)
    assert pacer.wait_ns(2000) == 800
