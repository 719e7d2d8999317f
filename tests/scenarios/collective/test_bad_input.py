"""Invalid input raises an error on every rank, in time, that names rank, communicator, operation and peer.

Never a hang, never a wrong sum; and the same ranks do good work before and after.
"""

from contextlib import closing

import msgspec
import pytest
from crew import Crew

from c4bench.verbs.transport import BRISK
from c4bench.workload.collectives import Call, Case, Deviation, Group

WRONG = 2
LATE_S = 3.0
TIMEOUT_S = 1.0
# Every rank knows so soon after it called: from its neighbours' grants, or by way of the control plane.
TELLING_S = 0.005
OPTIONS = {"chunk_bytes": 4096, "staging_bytes": 16384, "connect_s": TIMEOUT_S, "timeout_s": TIMEOUT_S}
COUNT = 5003
SUM = Call("all_reduce", count=COUNT)
EXCHANGE = Call("all_to_all", count=COUNT)
COPY = Call("broadcast", count=COUNT)
DONE = Call("barrier")
HEALTHY = Case((SUM, EXCHANGE, COPY), options=OPTIONS)


def but(call, **changes):
    """A call that differs."""
    return msgspec.structs.replace(call, **changes)


def wrongly(all_call, *, fresh=False, options=OPTIONS, **deviation):
    """A case in which one rank does something else."""
    return Case(tuple(all_call), options=options, deviations={WRONG: Deviation(**deviation)}, fresh=fresh)


# What all call, and what one calls instead. The barriers are needed as the root of a broadcast ends before it can know.
DISAGREEMENTS = {
    "dtype": ([SUM], [but(SUM, dtype="int32")]),
    "shape": ([SUM], [but(SUM, count=COUNT - 1)]),
    "parts": ([EXCHANGE], [but(EXCHANGE, count=COUNT - 1)]),
    "reduction": ([SUM], [but(SUM, op="max")]),
    "root": ([COPY, DONE], [but(COPY, peer=1), DONE]),
    "operation": ([SUM], [Call("all_gather", count=COUNT)]),
    "order": ([SUM, EXCHANGE], [EXCHANGE, SUM]),
}


@pytest.fixture
def healthy(crew):
    """The ranks do good work before the test and after it."""
    check_exact(crew(HEALTHY))
    yield
    check_exact(crew(HEALTHY))


@pytest.fixture
def fails(crew, healthy, measure):  # noqa: ARG001
    """Run a case that must fail, in time."""

    def run(case, statuses, within_s, **labels):
        outcomes = crew(case)
        check_errors(outcomes, statuses)
        latest_s = max(outcome.raised.raised_s - outcome.called_s for outcome in outcomes)
        measure("collective.error_s", latest_s, unit="s", at_most=within_s, **labels)

    return run


@pytest.mark.needs(hosts=4)
@pytest.mark.parametrize("what", DISAGREEMENTS)
def test_disagreement(fails, what):
    """A rank that calls another operation than the others fails with them, and the error names both calls."""
    all_call, instead = DISAGREEMENTS[what]
    fails(wrongly(all_call, calls=tuple(instead)), {"MISMATCH"}, TELLING_S, input=what)


@pytest.mark.needs(hosts=4)
def test_peer_that_never_connects(fails):
    """Ranks that wait for one to connect name it after `connect_s`, and it fails at once when it joins later."""
    late = wrongly([SUM], joins_after_s=LATE_S, fresh=True)
    fails(late, {"ABSENT"}, TIMEOUT_S + TELLING_S, input="never connects")


@pytest.mark.needs(hosts=4)
@pytest.mark.parametrize(
    "call",
    [
        pytest.param(call, id=call.kind, marks=pytest.mark.nightly if call is not SUM else ())
        for call in (SUM, EXCHANGE, DONE)
    ],
)
def test_peer_that_never_calls(fails, call):
    """Ranks that wait for one to call name it after `timeout_s`, and it fails at once when it calls later."""
    # Rank 0 does not wait for the late one itself. It comes a little later, so as to hear of it from those who do.
    pauses = {0: 5 * TELLING_S, WRONG: LATE_S}
    late = {rank: Deviation((but(call, late_s=late_s),)) for rank, late_s in pauses.items()}
    case = Case((call,), options=OPTIONS, deviations=late)
    fails(case, {"TIMEOUT"}, TIMEOUT_S + TELLING_S, input="never calls", operation=call.kind)


@pytest.mark.needs(hosts=4)
def test_buffer_that_cannot_be_registered(fails):
    """A rank whose array is in a file mapped read-only fails, and all other ranks fail with it."""
    fails(wrongly([EXCHANGE], calls=(but(EXCHANGE, read_only=True),)), {"MEMORY"}, TELLING_S, input="read-only memory")


@pytest.mark.needs(hosts=4)
def test_out_of_memory_while_connecting(fails):
    """A rank that cannot map its staging memory fails, and all other ranks fail with it."""
    case = wrongly([SUM], options=OPTIONS | {"staging_bytes": 32 << 20}, memory_bytes=16 << 20)
    fails(case, {"MEMORY"}, TELLING_S, input="no memory to connect")


@pytest.mark.needs(hosts=4)
def test_out_of_memory_in_an_operation(fails):
    """A rank that cannot map an operation's scratch memory fails, and all other ranks fail with it."""
    part_bytes = 2 << 20
    scatter = Call("reduce_scatter", count=part_bytes // 4)
    # Room for a whole array and a part, which are the rank's own, and not for another whole one.
    case = wrongly([scatter], memory_bytes=7 * part_bytes)
    fails(case, {"MEMORY"}, TELLING_S, input="no memory to reduce")


@pytest.mark.needs(hosts=4)
@pytest.mark.usefixtures("healthy")
def test_device_that_does_not_exist(crew, cluster):
    """A rank whose NIC does not exist under the job's name fails, and all other ranks fail with it."""
    spec = crew.spec
    renamed = [but(nic, device="absent0") if nic.host == spec.members[WRONG].host else nic for nic in spec.nics]
    with closing(Crew(cluster, but(spec, id=f"{spec.id}-renamed", nics=tuple(renamed)))) as without:
        outcomes = without(HEALTHY)
    check_errors(outcomes, {"DEVICE"})
    assert all("absent0" in outcome.raised.message for outcome in outcomes)


@pytest.mark.needs(hosts=4)
@pytest.mark.usefixtures("healthy")
def test_device_that_vanishes(crew, inject, clocks, retries, measure):
    """A NIC that loses its link during an operation is an error on every rank, and works again once repaired."""
    steps = but(SUM, repeat=10_000)
    # A NIC without a link keeps what it is given until its retries end: ranks wait for longer than that.
    retries_s = retries.most_s(BRISK.timeout, BRISK.retries)
    options = OPTIONS | {"profile": "brisk", "timeout_s": retries_s + TIMEOUT_S}
    case = Case((steps,), options=options, deviations={0: Deviation((but(steps, late_s=0.02),))})
    crew.give(case)
    with inject("nic.down", host=crew.spec.members[WRONG].host, nic=0) as fault:
        outcomes = crew.take()
    # Its own NIC refuses work, or its peers get no acknowledgement: whichever comes first.
    check_errors(outcomes, {"LOC_QP_OP_ERR", "RETRY_EXC_ERR"})
    hosts = [member.host for member in crew.spec.members]
    raised_s = [clocks.ours(host, one.raised.raised_s) for host, one in zip(hosts, outcomes, strict=True)]
    labels = {"input": "NIC down", "plus_minus": fault.clock_error_s + clocks.error_s(*hosts)}
    labels |= retries.labels(BRISK.timeout, BRISK.retries)
    # A rank that writes to a NIC without a link notices when its own NIC gives up.
    within_s = round(retries_s + TELLING_S, 6)
    measure("collective.error_s", max(raised_s) - fault.observed_s, unit="s", at_most=within_s, **labels)


@pytest.mark.needs(hosts=4)
@pytest.mark.usefixtures("healthy")
def test_message_of_another_size(crew):
    """A message whose length differs from the receiver's fails at both ends only, and the errors name both sizes."""
    send, receive = Call("send", count=9, peer=WRONG), Call("recv", count=8, peer=0)
    outcomes = crew(Case((), options=OPTIONS, deviations={0: Deviation((send,)), WRONG: Deviation((receive,))}))
    check_exact(outcomes[1::2])
    told = [(outcomes[rank].raised.rank, outcomes[rank].raised.kind, outcomes[rank].raised.peer) for rank in (0, WRONG)]
    assert told == [(0, "send", WRONG), (WRONG, "recv", 0)]
    for outcome in outcomes[::2]:
        assert outcome.raised.status in {"MISMATCH", "ABORTED"}
        assert "float32 36 B" in outcome.raised.message
        assert "float32 32 B" in outcome.raised.message
        assert outcome.raised.raised_s - outcome.called_s <= TELLING_S


@pytest.mark.needs(hosts=4)
@pytest.mark.usefixtures("healthy")
@pytest.mark.parametrize("kind", ["send", "recv"])
def test_message_of_one_end_only(crew, kind):
    """A message whose other end never calls times out with an error on that rank only."""
    outcomes = crew(Case((), options=OPTIONS, deviations={0: Deviation((Call(kind, peer=WRONG),))}))
    check_exact(outcomes[1:])
    raised = outcomes[0].raised
    assert (raised.status, raised.kind, raised.peer) == ("ABSENT", kind, WRONG)
    assert raised.raised_s - outcomes[0].called_s <= TIMEOUT_S + TELLING_S


@pytest.mark.needs(hosts=4)
@pytest.mark.usefixtures("healthy")
def test_a_failed_part_does_not_disturb_another(crew):
    """A mismatch in one part of a split is an error there, named as that part's; the other part's sum is exact."""
    halves = Group((0, 1, 0, 1), (0, 0, 0, 0))
    own = but(SUM, group=0)
    case = wrongly([own], calls=(but(own, dtype="int32"),))
    outcomes = crew(but(case, groups=(halves,)))
    check_exact(outcomes[1::2])
    check_errors(outcomes[::2], {"MISMATCH"}, wrong=halves.colors[:WRONG].count(0))


def check_exact(outcomes):
    """All went well."""
    assert [outcome.raised for outcome in outcomes if outcome.raised] == []
    assert all(outcome.exact == outcome.checked for outcome in outcomes)


def check_errors(outcomes, statuses, wrong=WRONG):
    """Every rank has an error of one of these statuses that names what must be named, or the words of one that has."""
    raised = [outcome.raised for outcome in outcomes]
    assert [error.type for error in raised] == ["CollectiveError"] * len(raised)
    own = [error for error in raised if error.status != "ABORTED"]
    assert own
    assert {error.status for error in own} <= statuses
    assert any(wrong in {error.rank, error.peer} for error in own)
    for rank, error in enumerate(raised):
        assert error.rank == rank
        assert error.message.startswith(f"rank {rank} of communicator {error.comm}, {error.kind}")
        assert error.peer == -1 or f"rank {error.peer}" in error.message
        if error.status == "ABORTED":
            assert raised[error.peer] in own
            assert raised[error.peer].message in error.message
    assert len({error.comm for error in raised}) == 1
    assert all(outcome.exact == outcome.checked for outcome in outcomes)
