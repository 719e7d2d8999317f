"""Clocks of hosts that files of other tools were written on: how far they are apart, and what depends on it."""

import random

import pytest

from c4bench.evidence.collect import one_job, parse
from c4bench.evidence.judging.judge import judge
from c4bench.evidence.write import WRITERS, history
from c4bench.model.evidence import Call, CallState, MemberEvidence, Reading
from c4bench.model.step import RankGroup, StepOp
from tools.sim.job import simulate
from tools.sim.model import SimFault, SimFaultKind, SimJob

OPS = (
    StepOp("all_reduce", 1 << 20, 0.01, RankGroup("tensor", 4, 1)),
    StepOp("all_gather", 4 << 20, 0.01, RankGroup("data", 4, 4)),
)


def report(forms, kind, offsets_s, tmp_path, **rest):
    """The judgement on a job of 16 ranks on hosts of two, whose clocks are off; rank 6 is at fault."""
    job = SimJob(16, OPS, seed=5, window_s=0.5, ranks_per_host=2, clock_offsets_s=offsets_s)
    found = history(one for tick in simulate(job, [SimFault(kind, 6, 0.5, **rest)], 2.0) for one in tick.windows)
    readings = [parse(data, tmp_path / name) for form in forms for name, data in WRITERS[form](found)]
    return judge(one_job(readings, []), ranks=16)


def offsets(seed):
    rng = random.Random(seed)
    return (100.0, *(100.0 + rng.uniform(-50.0, 50.0) for _ in range(7)))


@pytest.mark.parametrize("forms", [("flight-recorder", "ras"), ("inspector",), ("kineto", "ras")])
@pytest.mark.parametrize("seed", range(3))
def test_offsets_are_within_the_stated_error(tmp_path, forms, seed):
    """Clocks that are up to 100 s apart are compared to within the time of an operation, and the error holds."""
    true_s = offsets(seed)
    clocks = report(forms, SimFaultKind.HUNG, true_s, tmp_path).clocks
    assert len(clocks) == 8
    for clock in clocks:
        host = int(clock.host.removeprefix("h"))
        assert abs(clock.offset_s - (true_s[host] - true_s[0])) <= clock.error_s + 2e-6
        assert clock.error_s < 0.01


def test_ranks_without_hosts_have_clocks_of_their_own(tmp_path):
    """A dump does not name its host, so that each rank's clock is compared by itself."""
    true_s = offsets(7)
    clocks = report(("flight-recorder",), SimFaultKind.HUNG, true_s, tmp_path).clocks
    assert [clock.host for clock in clocks] == [f"rank {rank}" for rank in range(16)]
    for rank, clock in enumerate(clocks):
        assert abs(clock.offset_s - (true_s[rank // 2] - true_s[0])) <= clock.error_s + 2e-6


def test_how_long_a_rank_is_silent_is_told_across_hosts(tmp_path):
    """The time since the last call of the rank at fault does not depend on how far its host's clock is off."""
    lines = set()
    for far_s in (0.0, 40.0, -40.0):
        true_s = (100.0, 100.0, 100.0, 100.0 + far_s, 100.0, 100.0, 100.0, 100.0)
        (verdict,) = report(("flight-recorder", "ras"), SimFaultKind.HUNG, true_s, tmp_path).verdicts
        (line,) = [one for one in verdict.diagnosis.evidence if "its last call" in one]
        lines.add(float(line.split("its last call ")[1].split()[0]))
        assert abs(verdict.diagnosis.onset_s - 100.5) < 0.1
    assert max(lines) < 0.1


def called(rank, late_s=0.0, ahead_s=0.0, took_s=0.3, comm="0"):
    """The dump of a rank that calls 40 barriers, one a second, each `late_s` late, on a clock that is `ahead_s` ahead.

    They end `took_s` after the second, of which the dump tells nothing if that is 0.
    """
    calls = tuple(
        Call(seq, "barrier", CallState.COMPLETED, seq, created_s=1000.0 + seq + late_s + ahead_s,
             finished_s=1000.0 + took_s + seq + ahead_s if took_s else 0.0)
        for seq in range(40)
    )  # fmt: skip
    return MemberEvidence("", "flight recorder", comm, rank, rank, (0, 1, 2, 3), 4, calls=calls, last_seq=39)


def judged(*members):
    return judge(Reading(tuple(members), ranks=4))


def test_who_is_inside_for_the_shortest_time_is_told_on_its_own_clock():
    """Without durations, a rank's time inside is from its call to its end, whatever its clock is off by."""
    late = {2: {"late_s": 0.29, "ahead_s": -77.0}}
    (verdict,) = judged(*(called(rank, **late.get(rank, {"ahead_s": 5.0 * rank})) for rank in range(4))).verdicts
    assert (verdict.diagnosis.cause, verdict.culprits) == ("compute_slow", (2,))


def test_who_comes_last_is_told_on_one_clock():
    """Where no ends are known, the rank that calls last is slow, on clocks that another communicator compares.

    It is not named if it is late by less than the clocks' error.
    """
    ahead_s = (0.0, 30.0, -77.0, 4.0)
    for late_s, named in ((0.29, [(2,)]), (0.18, [])):
        late = [called(rank, late_s if rank == 2 else 0.0, ahead_s[rank], took_s=0.0) for rank in range(4)]
        compared = [called(rank, 0.0, ahead_s[rank], took_s=0.2, comm="1") for rank in range(4)]
        found = judged(*late, *compared)
        assert [verdict.culprits for verdict in found.verdicts] == named
        assert all(clock.error_s == pytest.approx(0.2) for clock in found.clocks[1:])


def test_without_a_comparison_nobody_comes_last():
    """Where nothing compares clocks, times of calls say nothing of who is late, and that is said."""
    found = judged(*(called(rank, 0.29 if rank == 2 else 0.0, took_s=0.0) for rank in range(4)))
    assert (found.verdicts, found.clocks) == ((), ())
    assert any(what.startswith("clocks: ") for what in found.cannot_tell)


def test_clocks_that_were_set_are_not_compared():
    """Times that no constant offset explains are said to contradict, and nothing is corrected."""
    members = [called(rank) for rank in range(4)]
    late = tuple(Call(call.seq, call.kind, call.state, call.order, created_s=call.created_s + 9.0,
                      finished_s=call.finished_s + 9.0) for call in members[1].calls[20:])  # fmt: skip
    calls = members[1].calls[:20] + late
    members[1] = MemberEvidence("rank_1", "flight recorder", "0", 1, 1, (0, 1, 2, 3), 4, calls=calls, last_seq=39)
    found = judge(Reading(tuple(members), ranks=4))
    assert found.clocks == ()
    assert any("contradict" in what for what in found.cannot_tell)
