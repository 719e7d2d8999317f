"""Resilient collectives over loopback: whatever happens to NICs, the sum is exact or the error is loud."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from world import World

from c4bench.collective.errors import CollectiveError
from c4bench.collective.rendezvous import EVERYBODY
from c4bench.collective.resilient.patience import Patience
from c4bench.collective.resilient.rail import SendingRail
from c4bench.collective.resilient.words import Fence, Fenced, Held, RailName, encode
from c4bench.collective.ring_reader import read_ring
from c4bench.verbs.transport import TransportProfile

SMALL = {"chunk_bytes": 1024, "staging_bytes": 8192}
# A millisecond here is what ten are on a fabric.
QUICK = Patience(
    tick_s=0.001,
    quiet_s=0.01,
    hold_s=0.004,
    resend_s=0.01,
    retry_s=0.03,
    steady_s=0.03,
    longest_s=0.3,
    probe=TransportProfile("probe", timeout=10, retries=1, rnr_retries=6),
)
FAST = TransportProfile("fast", timeout=12, retries=3, rnr_retries=6)


def resilient(world, size, nics=2, **options):
    return world(size, nics, resilient=True, **{"patience": QUICK, "profile": FAST, **SMALL, **options})


def unfailed(made, work):
    """What each rank returned; an error of any is raised."""
    outcomes = made.run(work)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return outcomes


def check_all_went_around(made, work):
    """`work` counts, on every rank alike, operations that went around what is lost, and there are some."""
    (done,) = set(unfailed(made, work))
    assert done > 0


def summed(comm, count, step=0):
    array = np.arange(count, dtype=np.int64) * (comm.rank + 1) + step
    comm.all_reduce(array)
    size = comm.size
    np.testing.assert_array_equal(array, np.arange(count) * (size * (size + 1) // 2) + size * step)


def lose(comm, storm, *nics):
    """Once all ranks are at work, have these NICs, by rank and number, go down in one of the next operations."""
    summed(comm, 100)
    comm.barrier()
    for rank, nic in nics if comm.rank == 0 else ():
        storm.add("down", rank, nic, after=10)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("nics", [1, 2, 3])
def test_healthy_collectives_are_exact(world, size, nics):
    """With nothing broken, every collective gives what it gives without resilience."""

    def work(comm):
        for count in (0, 1, 1000, 200_000):
            summed(comm, count)
        part = np.full(3000, comm.rank)
        whole = np.empty(3000 * size, part.dtype)
        comm.all_gather(whole, part)
        assert (whole.reshape(size, -1) == np.arange(size)[:, None]).all()
        comm.reduce_scatter(part, whole)
        assert (part == size * comm.rank).all()
        given = np.repeat(np.arange(size) + 10 * comm.rank, 5000)
        comm.all_to_all(taken := np.empty_like(given), given)
        np.testing.assert_array_equal(taken, np.repeat(10 * np.arange(size) + comm.rank, 5000))
        comm.broadcast(whole, src=size - 1)
        comm.reduce(whole, dst=0)
        comm.barrier()

    unfailed(resilient(world, size, nics), work)


class Storm:
    """What happens to the NICs of a world: each trouble begins after so many packets, and may end later."""

    def __init__(self, made):
        self._made = made
        self._network = made.network
        self._packets = 0
        self._troubles = []
        self.struck = 0
        made.network.fate = self

    def add(self, kind, rank, nic, after, lasts_s=None):
        """From packet `after` on (counted from now), NIC `nic` of `rank` has this trouble, for ever or for a while."""
        self._troubles.append([kind, (rank, nic), self._packets + after, lasts_s, None])

    def heal(self):
        """All is well again."""
        with self._network.lock:
            for trouble in self._troubles:
                self._made.set_active(*trouble[1], active=True)
            self._troubles.clear()

    def __call__(self, source, destination):
        self._packets += 1
        fates = [self._fate(trouble, source, destination) for trouble in self._troubles]
        return next((fate for fate in ("lost", "late", "unacknowledged") if fate in fates), "")

    def _fate(self, trouble, source, destination):
        kind, place, after, lasts_s, since_s = trouble
        if self._packets < after:
            return ""
        if since_s is None:
            trouble[4] = since_s = time.monotonic()
            self.struck += 1
            if kind == "down":
                self._made.set_active(*place, active=False)
        if lasts_s is not None and time.monotonic() - since_s > lasts_s:
            if place in self._made.down:
                self._made.set_active(*place, active=True)
            return ""
        return self._say(kind, place, source.place, destination.place)

    def _say(self, kind, place, source, destination):
        if kind == "path":
            return "lost" if {source, destination} == {place, (2, place[1])} else ""
        sends = {"tx": "lost", "late": "late", "acks": ""}.get(kind, "lost")
        receives = {"tx": "unacknowledged", "late": "", "acks": "unacknowledged"}.get(kind, "lost")
        return sends if source == place else receives if destination == place else ""


def states(comm):
    """The states of a communicator's rails, by how many there are of each."""
    return comm.resilience.states


def until(comm, wanted):
    """Go on until the rails of every rank are in these states."""
    agreed = np.zeros(1, np.int64)
    while not agreed[0]:
        comm.barrier()
        agreed[0] = set(states(comm)) == wanted
        comm.all_reduce(agreed, "min")


KINDS = ("black hole", "down", "tx", "acks", "late")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [2, 4])
def test_nic_dies_in_mid_operation(world, size, kind):
    """A NIC that fails in the middle of an all-reduce costs time, and not an element; later ones avoid it."""
    made = resilient(world, size)
    storm = Storm(made)

    def work(comm):
        summed(comm, 1000)
        comm.barrier()
        if comm.rank == 0:
            storm.add(kind, 1, 0, after=40)
        for step in range(3):
            summed(comm, 40_000, step)
        return states(comm)

    outcomes = unfailed(made, work)
    assert storm.struck == 1
    assert "up" in outcomes[1]
    assert {"fenced", "down", "trial"} & set(outcomes[1])


COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "barrier")


def exact(comm, kind, count, step):
    """Run a collective and hold every element against what it must be."""
    size, rank = comm.size, comm.rank
    if kind == "all_reduce":
        summed(comm, count, step)
    elif kind == "all_gather":
        comm.all_gather(whole := np.empty(size * count, np.int64), np.arange(count) + step + rank)
        np.testing.assert_array_equal(whole.reshape(size, -1), np.arange(count) + step + np.arange(size)[:, None])
    elif kind == "reduce_scatter":
        comm.reduce_scatter(part := np.empty(count, np.int64), np.arange(size * count) + step)
        np.testing.assert_array_equal(part, size * (np.arange(size * count) + step)[rank * count : (rank + 1) * count])
    elif kind == "all_to_all":
        given = (np.arange(size)[:, None] * 1000 + np.arange(count) + step + rank).reshape(-1)
        comm.all_to_all(taken := np.empty_like(given), given)
        np.testing.assert_array_equal(
            taken.reshape(size, -1), rank * 1000 + np.arange(count) + step + np.arange(size)[:, None]
        )
    elif kind == "broadcast":
        array = np.arange(count) + step + rank
        comm.broadcast(array, src=step % size)
        np.testing.assert_array_equal(array, np.arange(count) + step + step % size)
    elif kind == "reduce":
        array = np.arange(count) + step
        comm.reduce(array, dst=step % size)
        np.testing.assert_array_equal(array, (np.arange(count) + step) * (size if rank == step % size else 1))
    else:
        comm.barrier()


@given(data=st.data())
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_troubles_while_one_nic_is_left(world, data):
    """Up to four troubles of any kind at any time, also during recovery, that spare one NIC: every element is exact."""
    size = data.draw(st.integers(2, 4), label="ranks")
    nics = data.draw(st.integers(2, 3), label="NICs")
    spared = data.draw(st.integers(0, nics - 1), label="spared")
    kinds = data.draw(st.lists(st.sampled_from(COLLECTIVES), min_size=2, max_size=5), label="collectives")
    trouble = st.tuples(
        st.sampled_from(KINDS),
        st.integers(0, size - 1),
        st.sampled_from([nic for nic in range(nics) if nic != spared]),
        st.integers(0, 400),
        st.sampled_from([None, 0.004, 0.03, 0.1]),
    )
    troubles = data.draw(st.lists(trouble, min_size=1, max_size=4), label="troubles")
    made = resilient(world, size, nics)
    storm = Storm(made)

    def work(comm):
        for kind in set(kinds):
            exact(comm, kind, 10, 0)
        comm.barrier()
        if comm.rank == 0:
            for each in troubles:
                storm.add(*each)
        for step, kind in enumerate(kinds):
            exact(comm, kind, 20_000, step)
        comm.barrier()

    try:
        assert [outcome for outcome in made.run(work) if outcome is not None] == []
    finally:
        made.close()


def test_lost_nic_comes_back(world):
    """A NIC that works again is used again, after it has proved itself; and its GID is looked up afresh."""
    made = resilient(world, 3)
    storm = Storm(made)

    def work(comm):
        summed(comm, 1000)
        comm.barrier()
        if comm.rank == 0:
            storm.add("down", 1, 0, after=20)
        summed(comm, 100_000)
        lost = states(comm)
        comm.barrier()
        if comm.rank == 0:
            storm.heal()
        until(comm, {"up"})
        summed(comm, 100_000)
        return lost, states(comm), comm.resilience.returned

    outcomes = unfailed(made, work)
    assert storm.struck == 1
    for lost, found, _ in outcomes:
        assert set(lost) != {"up"}
        assert found == {"up": 4}
    assert sum(returned for *_, returned in outcomes) == 2


def test_lost_nic_comes_back_in_short_operations(world):
    """A NIC that works again is used again though no operation is as long as a look at the state of the rails."""
    made = resilient(world, 3, patience=msgspec.structs.replace(QUICK, tick_s=0.3))
    storm = Storm(made)

    def work(comm):
        summed(comm, 100)
        comm.barrier()
        if comm.rank == 0:
            storm.add("down", 1, 0, after=5, lasts_s=0.4)
        agreed, deadline_s = np.zeros(1, np.int64), time.monotonic() + 15
        while not agreed[0]:
            time.sleep(0.005)
            back = comm.resilience.died and set(states(comm)) == {"up"}
            agreed[0] = back or time.monotonic() > deadline_s
            comm.all_reduce(agreed, "min")
        return states(comm), comm.resilience.died > 0

    assert made.run(work) == [({"up": 4}, True)] * 3


@pytest.mark.parametrize("away_s", [0.05, 0.2])
def test_idle_peer_is_not_a_dead_path(world, away_s):
    """A peer that computes, or is frozen, for much longer than any silence is allowed costs no rail."""
    made = resilient(world, 3)

    def work(comm):
        summed(comm, 1000)
        if comm.rank == 1:
            time.sleep(away_s)
        summed(comm, 50_000)
        return states(comm), comm.resilience.died

    assert made.run(work) == [({"up": 4}, 0)] * 3


def test_short_flap_is_left_to_retransmission(world):
    """A black hole that is over before the transport has tried again costs no rail."""
    made = resilient(world, 2)
    storm = Storm(made)

    def work(comm):
        summed(comm, 1000)
        comm.barrier()
        if comm.rank == 0:
            storm.add("black hole", 1, 0, after=30, lasts_s=0.005)
        summed(comm, 100_000)
        return states(comm), comm.resilience.died

    assert made.run(work) == [({"up": 4}, 0)] * 2
    assert storm.struck == 1


def test_acknowledgements_lost_as_the_receiver_leaves(world):
    """A sender whose last acknowledgements are lost reads in the ledger of a receiver that has gone on to compute."""
    made = resilient(world, 2)
    storm = Storm(made)
    sender_is_done = threading.Event()

    def work(comm):
        summed(comm, 1000)
        comm.barrier()
        if comm.rank == 0:
            # The broadcast's receiver has all and leaves; its acknowledgements are lost.
            storm.add("acks", 0, 0, after=1)
        array = np.full(20_000, 7 + comm.rank)
        comm.broadcast(array, src=0)
        assert (array == 7).all()
        if comm.rank == 0:
            sender_is_done.set()
        computed = sender_is_done.wait(20)
        summed(comm, 1000)
        return computed

    assert made.run(work) == [True, True]
    assert storm.struck == 1


def keep_summing(comm):
    """Until something fails."""
    for step in range(100):
        summed(comm, 100_000, step)


@pytest.mark.parametrize("nics", [1, 2])
def test_host_without_a_nic_is_named_by_all(world, nics):
    """When every NIC of a host is gone, all ranks soon have an error that names it; the others can go on without it."""
    made = resilient(world, 4, nics)
    storm = Storm(made)

    def work(comm):
        summed(comm, 1000)
        comm.barrier()
        if comm.rank == 0:
            for nic in range(nics):
                storm.add("black hole", 2, nic, after=20)
        with pytest.raises(CollectiveError) as raised:
            keep_summing(comm)
        if comm.rank == 2:
            return raised.value, None
        with comm.shrink([raised.value.peer]) as left:
            array = np.full(1000, comm.rank)
            left.all_reduce(array)
            return raised.value, array[0]

    outcomes = made.run(work)
    for error, _ in outcomes:
        assert error.peer == 2
        assert error.status in ("HOST_LOST", "ABORTED")
        assert "host h2" in str(error)
    assert [outcome[1] for outcome in outcomes] == [4, 4, None, 4]


def test_ranks_that_disagree_about_resilience(tmp_path):
    """Where one rank is resilient and another is not, both say so and connect nothing."""
    made = World(tmp_path, 2, 2, absent=(0, 1), **SMALL)
    with ThreadPoolExecutor(2) as pool:
        joining = [pool.submit(made.join, rank, resilient=bool(rank)) for rank in range(2)]
        errors = [each.exception() for each in joining]
    assert {error.status for error in errors} <= {"MISMATCH", "ABORTED"}
    assert all("resilient" in str(error) for error in errors)


def test_words_of_an_earlier_life_are_ignored(world):
    """Fences and answers that name a life of the rail that is over, or rails that do not exist, change nothing."""
    made = resilient(world, 2)

    def work(comm):
        summed(comm, 1000)
        line = made.rendezvous.line("dp", 7 + comm.rank)
        for life in (0, 2):
            held = (Held(9, 9, ()),) * 2
            for name in (RailName(0, 1, 0), RailName(1, 0, 1), RailName(5, 6, 7)):
                line.tell(EVERYBODY, encode(Fence(name, life)))
                line.tell(EVERYBODY, encode(Fenced(name, life, held)))
        line.tell(EVERYBODY, b"nonsense")
        for step in range(3):
            summed(comm, 50_000, step)
        return states(comm)

    assert made.run(work) == [{"up": 4}] * 2


def test_shares_follow_the_rates_of_what_is_left(world):
    """What the lost NIC carried goes by the others in proportion to their rates."""
    made = resilient(world, 2, 3, rates=(1e10, 1e10, 3e10))
    storm = Storm(made)

    def work(comm):
        summed(comm, 1000)
        comm.barrier()
        if comm.rank == 0:
            storm.add("down", 1, 0, after=0)
        comm.barrier()
        time.sleep(0.01)
        for step in range(5):
            summed(comm, 10_000, step)
        comm.barrier()
        before = {conn.source: conn.size_bytes for conn in read_ring(made.path(comm.rank)).conns}
        summed(comm, 300_000)
        after = {conn.source: conn.size_bytes for conn in read_ring(made.path(comm.rank)).conns}
        return [after[nic] - before[nic] for nic in sorted(after)]

    for unused, slow, fast in made.run(work):
        assert unused == 0
        # Fifths by rate, of which the lost one is shared one to three.
        assert slow / fast == pytest.approx(1 / 3, rel=0.03)


@pytest.mark.parametrize("kind", ["black hole", "down", "path"])
def test_what_was_to_blame_is_found(world, kind):
    """A NIC that reaches nobody is blamed as a NIC; a path between two NICs that reach others, as a path."""
    made = resilient(world, 4)
    storm = Storm(made)

    def work(comm):
        summed(comm, 1000)
        comm.barrier()
        if comm.rank == 0:
            storm.add(kind, 1, 0, after=10)
        until = time.monotonic() + 1.5
        going_on = np.ones(1, np.int64)
        while going_on[0]:
            summed(comm, 10_000)
            going_on[0] = comm.rank or time.monotonic() < until
            comm.broadcast(going_on)
        return comm.resilience.findings[:1]

    found = {name for outcome in made.run(work) for finding in outcome for name in finding}
    assert found == ({"path h1/0>h2/0", "path h2/0>h1/0"} if kind == "path" else {"nic h1/0"})


def test_messages_between_two_ranks_outlive_a_nic(world):
    """Send and recv use rails too, and lose nothing with one."""
    made = resilient(world, 3)
    storm = Storm(made)

    def work(comm):
        if comm.rank == 1:
            comm.barrier()
            return
        for turn in range(6):
            array = np.arange(50_000) + turn if comm.rank == 0 else np.zeros(50_000, np.int64)
            if turn == 1 and comm.rank == 0:
                storm.add("black hole", 0, 0, after=20)
            comm.send(array, 2) if comm.rank == 0 else comm.recv(array, 0)
            np.testing.assert_array_equal(array, np.arange(50_000) + turn)
        comm.barrier()

    unfailed(made, work)


def test_several_qps_share_their_nic_until_it_dies(world):
    """Weights hold among the QPs of a NIC that is up; when it dies, the other's QPs carry its part."""
    made = resilient(world, 2, 2, qps=2)
    storm = Storm(made)

    def carried(comm):
        conns = read_ring(made.path(comm.rank)).conns
        return [sum(c.size_bytes for c in conns if c.qp == qp) for qp in sorted({c.qp for c in conns})]

    def work(comm):
        comm.weigh(1 - comm.rank, 0, (3, 1))
        summed(comm, 1000)
        before = carried(comm)
        for step in range(4):
            summed(comm, 100_000, step)
        shares = np.subtract(carried(comm), before)
        comm.barrier()
        if comm.rank == 0:
            storm.add("black hole", 1, 0, after=20)
        for step in range(3):
            summed(comm, 100_000, step)
        return shares.tolist()

    for first, second, third, fourth in made.run(work):
        assert first / second == pytest.approx(3, rel=0.05)
        assert third / fourth == pytest.approx(1, rel=0.05)
    assert storm.struck == 1


def test_killed_rank_is_a_lost_host(world):
    """A rank whose process is gone answers no probe: the others are told whose it is, and go on without it."""
    made = resilient(world, 3)

    def work(comm):
        summed(comm, 1000)
        comm.barrier()
        if comm.rank == 1:
            for port in made.ports[1]:
                made.network.remove(port)
            return None
        with pytest.raises(CollectiveError) as raised:
            keep_summing(comm)
        with comm.shrink([raised.value.peer]) as left:
            summed(left, 1000)
        return raised.value.peer

    assert made.run(work) == [1, None, 1]


def test_flapping_nic_is_left_alone_longer_each_time(world):
    """A NIC that dies again soon after it came back waits twice as long before it is tried again."""
    made = resilient(world, 2)
    storm = Storm(made)

    def penalties(comm):
        rails = [rail for _, rail in comm._group._engine.edges.rails()]
        return [rail.penalty_s for rail in rails if isinstance(rail, SendingRail) and rail.nic == 0]

    def work(comm):
        seen = []
        for _ in range(3):
            if comm.rank == 0:
                storm.add("down", 1, 0, after=0)
            until(comm, {"up", "down"})
            seen += penalties(comm)
            comm.barrier()
            if comm.rank == 0:
                storm.heal()
            until(comm, {"up"})
        return seen

    for seen in made.run(work):
        assert seen == pytest.approx([QUICK.retry_s, 2 * QUICK.retry_s, 4 * QUICK.retry_s])


@pytest.mark.parametrize("resilience", [False, True])
def test_unlike_nics_carry_by_their_rates(world, resilience):
    """A NIC of three times the rate carries three times the bytes, resilient or not, and every element is exact."""
    made = world(3, 2, resilient=resilience, rates=(1e10, 3e10), **SMALL)

    def work(comm):
        for count in (1, 1001, 150_001):
            summed(comm, count)
        conns = read_ring(made.path(comm.rank)).conns
        return [sum(conn.size_bytes for conn in conns if conn.source.endswith(nic)) for nic in ("/0", "/1")]

    for slow, fast in made.run(work):
        assert fast / slow == pytest.approx(3, rel=0.05)


@pytest.mark.parametrize(
    ("size", "nics", "odds", "op", "second"),
    [
        (4, 2, (0,), "sum", None),
        (4, 2, (2,), "avg", None),
        (4, 2, (1,), "max", 3),
        (5, 3, (0, 1), "sum", None),
        (5, 3, (1, 3), "avg", None),
        (6, 3, (0, 4), "max", 2),
        (7, 3, (0, 2), "sum", 0),
    ],
)
def test_all_reduce_beside_degraded_ranks(world, size, nics, odds, op, second):
    """The others reduce a part without ranks that have lost a NIC: exact everywhere, also if another NIC dies in it."""
    made = resilient(world, size, nics, split_bytes=1 << 14)
    storm = Storm(made)
    want = {"sum": sum(range(size + 1)) * 60, "avg": sum(range(size + 1)) * 60 // size, "max": size * 60}[op]

    def work(comm):
        lose(comm, storm, *((odd, 0) for odd in odds))
        for _ in range(36):
            if second is not None and comm.rank == 0 and comm.resilience.split == 1:
                storm.add("black hole", second, 1, after=20)
            array = np.arange(5_000, dtype=np.int64) * 60 * (comm.rank + 1)
            comm.all_reduce(array, op)
            np.testing.assert_array_equal(array, np.arange(5_000) * want)
        return comm.resilience.split

    check_all_went_around(made, work)
    assert storm.struck == len(odds) + (second is not None)


def test_host_lost_beside_a_degraded_rank(world):
    """A host that loses all its NICs while a part is reduced without another ends it on every rank, with its name."""
    made = resilient(world, 4, split_bytes=1 << 14)
    storm = Storm(made)

    def work(comm):
        lose(comm, storm, (0, 0))
        if comm.rank == 0:
            for nic in range(2):
                storm.add("black hole", 2, nic, after=1500)
        with pytest.raises(CollectiveError) as raised:
            keep_summing(comm)
        return raised.value

    for error in made.run(work):
        assert error.status in ("HOST_LOST", "ABORTED")
        assert "host h2" in str(error)


@pytest.mark.parametrize("second", [False, True])
def test_all_reduce_by_a_ring_in_another_order(world, second):
    """Where neighbours have lost different NICs ranks form another ring: exact, also if one more NIC dies in it."""
    made = resilient(world, 4, 3, split_bytes=1 << 14)
    storm = Storm(made)

    def work(comm):
        lose(comm, storm, (1, 0), (2, 1))
        for step in range(40):
            if second and comm.rank == 0 and comm.resilience.reordered == 1:
                storm.add("black hole", 3, 2, after=20)
            summed(comm, 5_000, step)
        return comm.resilience.reordered

    check_all_went_around(made, work)
    assert storm.struck == 2 + second


def test_plain_ring_again(world):
    """When the NICs are back large all-reduces go by the plain ring again, also where there are no others."""
    made = resilient(world, 4, 3, split_bytes=1 << 14)
    storm = Storm(made)

    def work(comm):
        lose(comm, storm, (1, 0), (2, 1))
        while not comm.resilience.reordered:
            summed(comm, 5_000)
        if comm.rank == 0:
            storm.heal()
        since = before = 0
        for step in range(3000):
            summed(comm, 5_000, step)
            since = since + 1 if comm.resilience.reordered == before else 0
            before = comm.resilience.reordered
            if since == 40:
                break
        return since, states(comm)

    assert set(map(str, unfailed(made, work))) == {str((40, {"up": 6}))}


def test_host_lost_in_another_order(world):
    """A host that loses all its NICs in a ring of another order is named by its rank in the communicator."""
    made = resilient(world, 5, 3, split_bytes=1 << 14)
    storm = Storm(made)

    def work(comm):
        lose(comm, storm, (1, 0), (2, 1))
        while not comm.resilience.reordered:
            summed(comm, 5_000)
        if comm.rank == 0:
            for nic in range(3):
                storm.add("black hole", 3, nic, after=100)
        with pytest.raises(CollectiveError) as raised:
            keep_summing(comm)
        return raised.value

    for error in made.run(work):
        assert error.status in ("HOST_LOST", "ABORTED")
        assert error.peer == 3
        assert error.comm == "dp"


@given(data=st.data())
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_ranks_have_lost_nics(world, data):
    """Whichever NICs ranks have lost but one, large all-reduces are exact, and all ranks go the same way."""
    size, nics = data.draw(st.integers(3, 6), label="ranks"), data.draw(st.integers(2, 4), label="NICs")
    lost = data.draw(st.sets(st.tuples(st.integers(0, size - 1), st.integers(1, nics - 1))), label="lost")
    made = resilient(world, size, nics, split_bytes=1 << 14, down=lost)

    def work(comm):
        for step in range(20):
            summed(comm, 5_000, step)
        return comm.resilience.split, comm.resilience.reordered

    try:
        assert len(set(unfailed(made, work))) == 1
    finally:
        made.close()


def test_nics_that_are_down_while_connecting(world):
    """NICs that are down when ranks connect are lost as they would be later: sums are exact, and they come back."""
    made = resilient(world, 3, 3, down={(1, 0), (1, 1), (2, 0)})

    def work(comm):
        summed(comm, 40_000)
        lost = states(comm)
        comm.barrier()
        if comm.rank == 0:
            made.bring_up()
        until(comm, {"up"})
        summed(comm, 40_000)
        return lost

    outcomes = unfailed(made, work)
    assert all(set(lost) != {"up"} for lost in outcomes)


@pytest.mark.parametrize("fault", ["nameless", "moving"])
def test_gid_that_changes_while_connecting(world, fault):
    """A NIC whose GID is gone when ranks connect, or changes meanwhile, is lost until it can be connected afresh."""
    made = resilient(world, 3, **{fault: {(1, 0)}})

    def work(comm):
        summed(comm, 40_000)
        lost = states(comm)
        comm.barrier()
        if comm.rank == 0:
            made.bring_up()
        until(comm, {"up"})
        summed(comm, 40_000)
        return lost, comm.resilience.died

    for lost, died in unfailed(made, work):
        assert died
        assert set(lost) != {"up"} or fault == "moving"


def test_no_gid_while_connecting_without_resilience(world):
    """Without resilience a NIC without a GID is an error on every rank, with its name, and nobody waits."""
    made = world(3, 2, nameless={(1, 0)}, **SMALL)
    errors = [each.exception() for each in made.joined]
    assert {error.status for error in errors} == {"DEVICE", "ABORTED"}
    assert all("rxe0: the port has no address" in str(error) for error in errors)


def test_nic_that_is_lost_while_the_others_connect(world):
    """One that goes down while the others connect to reduce without a degraded rank costs no element, and no error."""
    made = resilient(world, 4, split_bytes=1 << 14)
    storm = Storm(made)

    def work(comm):
        lose(comm, storm, (0, 0))
        if comm.rank == 0:
            made.down.add((2, 1))
        for step in range(24):
            summed(comm, 5_000, step)
        return comm.resilience.split

    check_all_went_around(made, work)
