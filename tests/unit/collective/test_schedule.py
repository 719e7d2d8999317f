"""Schedules, executed symbolically, are complete, exact and free of deadlock."""

import math
from collections import Counter, defaultdict, deque
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from c4bench.collective import schedule

sizes = st.integers(2, 9)
chunk_counts = st.integers(1, 4)


def execute(plans, state):
    """Run plans: `state[rank][segment, chunk]` is a Counter of contributions. Returns the final states.

    An edge of number peer + k x size is another one to or from that peer.
    """
    size = len(plans)
    unsent = [[deque(stream) for stream in plan.streams] for plan in plans]
    expected = [defaultdict(deque) for _ in range(size)]
    for rank, plan in enumerate(plans):
        for receive in plan.receives:
            expected[rank][receive.peer].append(receive)
    links, passed = defaultdict(deque), [Counter() for _ in range(size)]
    moving = True
    while moving:
        moving = False
        for rank, streams in enumerate(unsent):
            for stream in streams:
                if stream and stream[0].needs <= passed[rank][stream[0].gate]:
                    send = stream.popleft()
                    edge, peer = divmod(send.peer, size)
                    links[rank, peer, edge].append((send, Counter(state[rank][send.segment, send.chunk])))
                    moving = True
            for peer, receives in expected[rank].items():
                link = links[peer % size, rank, peer // size]
                if link and receives[0].needs <= passed[rank][receives[0].after]:
                    moving = True
                    use(state[rank], *link.popleft(), receives.popleft(), passed[rank])
    assert not any(stream for streams in unsent for stream in streams)
    assert not any(receives for each in expected for receives in each.values())
    return state


def use(contents, send, content, receive, passed):
    """What a rank does with a message."""
    assert (send.segment, send.chunk, send.staged) == (receive.segment, receive.chunk, receive.reduce)
    key = (receive.segment, receive.chunk)
    contents[key] = contents[key] + content if receive.reduce else content
    passed[receive.gate] += 1


def own(size, segments, chunks):
    return [{(s, c): Counter([rank]) for s in range(segments) for c in range(chunks)} for rank in range(size)]


@given(sizes, chunk_counts)
def test_all_reduce_adds_every_contribution_once(size, chunks):
    """After a ring all-reduce every chunk on every rank holds each rank's contribution exactly once."""
    plans = [schedule.all_reduce(rank, size, chunks) for rank in range(size)]
    for contents in execute(plans, own(size, size, chunks)):
        assert all(content == Counter(range(size)) for content in contents.values())


@given(sizes, chunk_counts)
def test_reduce_scatter_completes_the_own_segment(size, chunks):
    """After reduce-scatter rank r holds the whole of segment r, and its last arrivals are marked final."""
    plans = [schedule.reduce_scatter(rank, size, chunks) for rank in range(size)]
    for rank, contents in enumerate(execute(plans, own(size, size, chunks))):
        assert all(contents[rank, chunk] == Counter(range(size)) for chunk in range(chunks))
        final = {(receive.segment, receive.chunk) for receive in plans[rank].receives if receive.final}
        assert final == {(rank, chunk) for chunk in range(chunks)}


def placed(plan, order, *, owned):
    """The plans by rank, where place p of a ring is rank `order[p]`'s."""
    size = len(order)
    return [schedule.among(plan(order.index(rank), size), order, owned=owned) for rank in range(size)]


@given(sizes, chunk_counts, st.data())
def test_broadcast_reaches_all(size, chunks, data):
    """After a broadcast, in any order of the ranks, every rank holds the content of the first."""
    order = tuple(data.draw(st.permutations(range(size))))
    plans = placed(lambda place, size: schedule.broadcast(place, size, chunks), order, owned=False)
    for contents in execute(plans, own(size, 1, chunks)):
        assert all(content == Counter([order[0]]) for content in contents.values())


@given(sizes, chunk_counts, st.data())
def test_reduce_scatter_in_any_order_completes_the_own_segment(size, chunks, data):
    """Whatever the order of the ranks in the ring, rank r holds the whole of segment r in the end."""
    order = tuple(data.draw(st.permutations(range(size))))
    plans = placed(lambda place, size: schedule.reduce_scatter(place, size, chunks), order, owned=True)
    for rank, contents in enumerate(execute(plans, own(size, size, chunks))):
        assert all(contents[rank, chunk] == Counter(range(size)) for chunk in range(chunks))


@given(sizes, chunk_counts)
def test_all_gather_spreads_each_segment(size, chunks):
    """After an all-gather segment s is rank s's everywhere."""
    plans = [schedule.all_gather(rank, size, chunks) for rank in range(size)]
    for contents in execute(plans, own(size, size, chunks)):
        assert all(content == Counter([segment]) for (segment, _), content in contents.items())


@given(sizes, st.data())
def test_barrier_waits_for_each_rank(size, data):
    """A rank that never enters keeps every other rank in the barrier."""
    absent = data.draw(st.integers(0, size - 1))
    plans = [schedule.barrier(rank, size) for rank in range(size)]
    arrived, sent, moving = [0] * size, [0] * size, True
    while moving:
        moving = False
        for rank, plan in enumerate(plans):
            (sends,) = plan.streams
            ready = rank != absent and sent[rank] < len(sends) and sends[sent[rank]].needs <= arrived[rank]
            if ready:
                sent[rank] += 1
                arrived[(rank + 1) % size] += 1
                moving = True
    assert all(arrived[rank] < len(plans[rank].receives) for rank in range(size) if rank != absent)


@given(sizes)
def test_shift_covers_every_pair_by_permutations(size):
    """Linear shift: each step is a permutation and all ordered pairs occur once."""
    steps = [schedule.shift(rank, size) for rank in range(size)]
    pairs = {(rank, to) for rank in range(size) for to, _ in steps[rank]}
    assert len(pairs) == size * (size - 1)
    for step in range(size - 1):
        assert sorted(steps[rank][step][0] for rank in range(size)) == list(range(size))
        for rank in range(size):
            to, _ = steps[rank][step]
            assert steps[to][step][1] == rank


@settings(max_examples=50)
@given(st.integers(0, 10_000), st.integers(1, 20))
def test_split_is_balanced_and_complete(count, parts):
    """Spans join up, cover the range, and differ in length by at most one."""
    spans = schedule.split(count, parts)
    lengths = [stop - start for start, stop in spans]
    assert [spans[0][0], spans[-1][1]] == [0, count]
    assert all(left[1] == right[0] for left, right in pairwise(spans))
    assert max(lengths) - min(lengths) <= 1


@given(st.integers(0, 100_000), st.integers(1, 16), st.sampled_from([2, 4, 8]), st.integers(1, 64))
def test_no_chunk_exceeds_the_largest_message(count, parts, itemsize, blocks):
    """However a segment is cut, its longest chunk fits the chunk size."""
    chunk_bytes = blocks * 64
    chunks = schedule.chunk_count(count, parts, itemsize, chunk_bytes)
    segment = math.ceil(count / parts)
    assert math.ceil(segment / chunks) * itemsize <= chunk_bytes


@given(sizes, chunk_counts, st.data())
def test_fold_adds_each_degraded_rank_once(size, chunks, data):
    """Folding the first ranks gives all ranks the whole sum, and each of them is added once, on the way around."""
    degraded = data.draw(st.integers(1, size - 1))
    plans = [schedule.fold(rank, size, chunks, degraded) for rank in range(size)]
    others = Counter(range(degraded, size))
    state = [
        {(0, c): Counter([rank]) if rank < degraded else Counter(others) for c in range(chunks)} for rank in range(size)
    ]
    for contents in execute(plans, state):
        assert all(content == Counter(range(size)) for content in contents.values())
    assert sum(any(receive.reduce for receive in plan.receives) for plan in plans) == degraded
    assert [any(receive.final for receive in plan.receives) for plan in plans].index(True) == degraded
