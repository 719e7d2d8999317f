"""Every collective is exact in every element for all parameters, and writes nothing else."""

import math

import msgspec
import pytest
from covering import all_pairs, pairs, pairwise
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from c4bench.model.measurement import Clock
from c4bench.workload.collectives import WORLD, Call, Case, Deviation, Group

KINDS = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "all_to_all", "send", "barrier")
OPS = ("sum", "min", "max", "avg")
DTYPES = ("float32", "float64", "float16", "bfloat16", "int32", "int64")
# Nothing, one, fewer than ranks, primes, and more than a chunk or a connection's staging memory holds.
MANY = 20011
COUNTS = (0, 1, 3, 127, 1009, MANY)
# So many items a NIC are shared among several.
SHARED = 35023
# Small chunks and little staging make long schedules of small arrays. All NICs; one; and two QPs a connection.
SMALL = {"chunk_bytes": 4096, "staging_bytes": 16384, "timeout_s": 20.0}
SETUPS = {"all": SMALL, "one": SMALL | {"channels": 1, "window": 2}, "pairs": SMALL | {"qps": 2}}
PARAMETERS = {
    "kind": KINDS,
    "op": OPS,
    "dtype": DTYPES,
    "count": COUNTS,
    "root": ("first", "middle", "last"),
    "group": ("whole", "halves", "backwards"),
    "setup": tuple(SETUPS),
}
ROUNDS = ("all_reduce", "all_to_all", "reduce_scatter", "all_gather")


class Tally:
    """Elements compared and exact on all ranks, over all cases of a scenario."""

    def __init__(self, crew):
        self.crew = crew
        self.exact = self.checked = self.cases = 0

    def run(self, case):
        """A case that must go well."""
        outcomes = self.crew(case)
        assert [outcome.raised for outcome in outcomes if outcome.raised] == [], case
        exact, checked = (sum(getattr(outcome, name) for outcome in outcomes) for name in ("exact", "checked"))
        self.exact, self.checked, self.cases = self.exact + exact, self.checked + checked, self.cases + 1
        assert exact == checked, case


@pytest.fixture
def tally(crew, measure):
    """Run cases; what they add up to is measured, however they end."""
    tally = Tally(crew)
    yield tally
    fraction = tally.exact / tally.checked if tally.checked else math.nan
    labels = {"hosts": crew.size, "nics": crew.nics, "cases": tally.cases}
    measure("collective.exact_fraction", fraction, equals=1, clock=Clock.NONE, **labels)


def test_cases_cover_all_pairs():
    """The cases below contain every two values of different parameters."""
    assert set().union(*map(pairs, pairwise(PARAMETERS))) == all_pairs(PARAMETERS)


@pytest.mark.needs(hosts=8)
def test_pairwise(tally):
    """Collectives x reductions x data types x sizes x roots x groups x set-ups, every two values at least once."""
    for chosen in pairwise(PARAMETERS):
        tally.run(chosen_case(tally.crew, **chosen))


@pytest.mark.needs(hosts=4)
@pytest.mark.parametrize("cases", [20, pytest.param(60, marks=pytest.mark.nightly)])
def test_random(tally, pytestconfig, cases):
    """Up to four random collectives in a row, on random splits of the job, are exact."""

    @seed(pytestconfig.option.c4_seed)
    @settings(max_examples=cases, deadline=None, database=None)
    @given(random_cases(tally.crew.size))
    def exact(case):
        tally.run(case)

    exact()


@pytest.mark.needs(hosts=8)
def test_overlapping_communicators(tally):
    """Rows and columns of a grid work at the same time: in each round odd rows begin with the columns' operation."""
    ranks = range(tally.crew.size)
    width = len(ranks) // 2
    grid = split([rank // width for rank in ranks]), split([rank % width for rank in ranks])
    rows, columns = (
        [Call(kind, "int32", 1009, group=group, step=step) for step, kind in enumerate(kinds)]
        for group, kinds in enumerate((ROUNDS, ROUNDS[::-1]))
    )
    others = Deviation(calls=in_turn(columns, rows))
    tally.run(Case(in_turn(rows, columns), grid, SMALL, {rank: others for rank in ranks if rank // width % 2}))


@pytest.mark.needs(hosts=4)
def test_pipeline(tally):
    """Microbatches go from stage to stage, all stages at work at once, the last ones larger than any buffer."""
    last = tally.crew.size - 1
    sizes = [(step, COUNTS[step]) for step in range(len(COUNTS))]
    stages = {}
    for rank in range(last + 1):
        receive = [Call("recv", count=count, peer=rank - 1, step=step) for step, count in sizes if rank]
        send = [Call("send", count=count, peer=rank + 1, step=step) for step, count in sizes if rank < last]
        stages[rank] = Deviation(calls=in_turn(receive, send) if receive and send else (*receive, *send))
    tally.run(Case(options=SMALL, deviations=stages))


@pytest.mark.needs(hosts=4)
def test_corrupted_element_is_noticed(crew):
    """An element changed on purpose on one rank after the exchange is counted as wrong, on that rank only."""
    outcomes = crew(Case((Call("all_to_all", "bfloat16", 1009, corrupt=True),), options=SMALL))
    assert [outcome.checked - outcome.exact for outcome in outcomes] == [1, 0, 0, 0]


def split(colors, keys=None):
    """A split by color, ordered by rank unless keys say otherwise."""
    return Group(tuple(colors), tuple(keys or range(len(colors))))


def in_turn(first, second):
    """One of each at a time."""
    return tuple(call for pair in zip(first, second, strict=True) for call in pair)


def parts(group, size):
    """The parts of a split, or the whole job: lists of the job's ranks in the order they have there."""
    if group is None:
        return [list(range(size))]
    chosen = {color for color in group.colors if color is not None}
    ordered = sorted(range(size), key=lambda rank: (group.keys[rank], rank))
    return [[rank for rank in ordered if group.colors[rank] == color] for color in sorted(chosen)]


def chosen_case(crew, *, kind, op, dtype, count, root, group, setup):
    """A case of the covering table. `backwards` leaves rank 1 out and orders the others from the last to the first."""
    size, ranks = crew.size, range(crew.size)
    if count == MANY and crew.nics > 1:
        count = SHARED * crew.nics
    group = {
        "whole": None,
        "halves": split([rank % 2 for rank in ranks]),
        "backwards": split([None if rank == 1 else 0 for rank in ranks], [-rank for rank in ranks]),
    }[group]
    smallest = min(map(len, parts(group, size)))
    peer = {"first": 0, "middle": smallest // 2, "last": smallest - 1}[root]
    call = Call(kind, dtype, count, op, peer, group=WORLD if group is None else 0)
    return collective_case(size, [call], group, SETUPS[setup])


def collective_case(size, calls, group, options):
    """A case in which a call of `send` means that rank `peer` sends to the one after it and the others do nothing."""
    deviations = {}
    for part in parts(group, size):
        for place, rank in enumerate(part):
            sides = (side(call, place, len(part)) for call in calls)
            own = tuple(call for call in sides if call is not None)
            if own != tuple(calls):
                deviations[rank] = Deviation(own)
    return Case(tuple(calls), () if group is None else (group,), options, deviations)


def side(call, place, size):
    """A call as the rank at `place` makes it, None where it has no part in it."""
    if call.kind != "send":
        return call
    receiver = (call.peer + 1) % size
    if size == 1 or place not in (call.peer, receiver):
        return None
    changes = {"peer": receiver} if place == call.peer else {"kind": "recv"}
    return msgspec.structs.replace(call, **changes)


@st.composite
def random_cases(draw, size):
    """Calls on the whole job, or all on the parts of one split."""
    ranks = range(size)
    colors = st.lists(st.sampled_from([0, 1, None]), min_size=size, max_size=size)
    groups = st.none() | st.builds(split, colors, st.permutations(ranks))
    group = draw(groups)
    smallest = min(map(len, parts(group, size)), default=1)
    calls = st.builds(
        Call,
        kind=st.sampled_from(KINDS),
        dtype=st.sampled_from(DTYPES),
        count=st.integers(0, 3000),
        op=st.sampled_from(OPS),
        peer=st.integers(0, smallest - 1),
        group=st.just(WORLD if group is None else 0),
        step=st.integers(0, 99),
    )
    options = st.sampled_from(list(SETUPS.values()))
    return collective_case(size, draw(st.lists(calls, min_size=1, max_size=4)), group, draw(options))
