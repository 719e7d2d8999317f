"""The pacer."""

import pytest

from c4bench.collective.pacer import Pacer


def test_messages_keep_to_the_rate():
    """A message waits until the previous ones would have been sent; an idle time gives no credit."""
    pacer = Pacer(8e9, 4)
    assert pacer.wait_ns(1000) == 0
    pacer.sent(500, 1000)
    assert pacer.wait_ns(1100) == 400
    assert pacer.wait_ns(1500) == 0
    pacer.sent(500, 9000)
    pacer.sent(500, 9000)
    assert pacer.wait_ns(9000) == 1000


def test_messages_follow_what_the_path_carries():
    """On a path of half the NIC's rate messages are soon paced at little more than the path's rate."""
    pacer, sent, now_ns, link_free_ns = Pacer(8e9, 4), 0, 0, 0
    on_their_way, gaps_ns, before_ns = [], [], 0
    while sent < 100:
        if len(on_their_way) < 4:
            now_ns += pacer.wait_ns(now_ns)
        while on_their_way and (len(on_their_way) == 4 or on_their_way[0][1] <= now_ns):
            posted_ns, acknowledged_ns = on_their_way.pop(0)
            now_ns = max(now_ns, acknowledged_ns)
            pacer.acknowledged(acknowledged_ns - posted_ns)
        if pacer.wait_ns(now_ns):
            continue
        pacer.sent(1000, now_ns)
        link_free_ns = max(link_free_ns, now_ns) + 2000
        on_their_way.append((now_ns, link_free_ns + 100))
        gaps_ns.append(now_ns - before_ns)
        sent, before_ns = sent + 1, now_ns
    assert min(gaps_ns[1:4]) == 1000
    assert min(gaps_ns[50:]) >= 2000 / 1.21
    assert sum(gaps_ns[50:]) == pytest.approx(50 * 2000, rel=0.01)


def test_a_burst_of_acknowledgements_lets_no_burst_go():
    """A burst of acknowledgements does not release a burst of messages."""
    pacer = Pacer(8e9, 4)
    for number in range(4):
        pacer.sent(1000, 1000 * number)
    for number in range(4):
        pacer.acknowledged(12_000 - 1000 * number)
    pacer.sent(1000, 12_000)
    assert pacer.wait_ns(12_000) > 2000


def test_a_path_that_is_faster_again_is_used():
    """When a path gets faster, messages are paced at the NIC's rate again."""
    pacer, now_ns = Pacer(8e9, 4), 0
    for latency_ns in [20_000] * 20 + [1100] * 40:
        now_ns += pacer.wait_ns(now_ns)
        pacer.sent(1000, now_ns)
        now_ns += latency_ns
        pacer.acknowledged(latency_ns)
    now_ns += pacer.wait_ns(now_ns)
    pacer.sent(1000, now_ns)
    assert pacer.wait_ns(now_ns) == 1000
