"""Sends and receives in flight recorder dumps: who waits for whom, from both sides' calls."""

import json
from pathlib import Path

import pytest

from c4bench.evidence.collect import one_job, parse
from c4bench.evidence.judging.judge import judge
from c4bench.evidence.write import WRITERS, history
from c4bench.model.step import RankGroup, StepOp
from tools.sim.job import simulate
from tools.sim.model import SimFault, SimFaultKind, SimJob


def p2p(rank, kind, peer, seq, state="completed", **other):
    """An entry as PyTorch 2.8 to 2.14 write it on NCCL."""
    arrow = "->" if kind == "send" else "<-"
    fields = {
        "pg_id": 0,
        "process_group": ["0", "default_pg"],
        "collective_seq_id": 0,
        "p2p_seq_id": seq,
        "is_p2p": True,
        "profiling_name": f"nccl:{kind} {rank}{arrow}{peer}",
        "input_sizes": [[4]],
        "input_dtypes": ["Float"],
        "state": state,
        "retired": state == "completed",
    }
    return fields | other


def dump(entries, ranks, first=0):
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(ranks)))}}
    numbered = [entry | {"record_id": number} for number, entry in enumerate(entries, start=first)]
    return {"version": "2.10", "pg_config": config, "entries": numbered}


def judged(*dumps, lost=()):
    readings = [
        parse(json.dumps(one).encode(), Path(f"rank_{rank}")) for rank, one in enumerate(dumps) if rank not in lost
    ]
    return judge(one_job(readings, []), ranks=len(dumps))


def pipeline(states, first=0):
    """Three stages that pass on three batches; `states` are of the last calls: send 0, recv and send 1, recv 2."""
    entries = [[], [], []]
    for batch in range(3):
        last = states if batch == 2 else ("completed",) * 4
        seqs = (batch + 1, 2 * batch + 1, 2 * batch + 2, batch + 1)
        for (rank, kind, peer), seq, state in zip(
            ((0, "send", 1), (1, "recv", 0), (1, "send", 2), (2, "recv", 1)), seqs, last, strict=True
        ):
            if state:
                entries[rank].append(p2p(rank, kind, peer, seq, state))
    return [dump(one, 3, first) for one in entries]


@pytest.mark.parametrize("first", [0, 500])
def test_a_stage_that_does_not_receive_is_waited_for(first):
    """A stage that has called neither its receive nor its send is named, also where older calls are lost."""
    report = judged(*pipeline(("started", "", "", "started"), first))
    (verdict,) = report.verdicts
    assert (verdict.diagnosis.cause, verdict.culprits, verdict.only_wait) == ("not_entered", (1,), (0, 2))
    assert {(one.kind, one.ranks, one.waits_for) for one in report.standings} == {
        ("send", (0,), (1,)), ("recv", (2,), (1,)),
    }  # fmt: skip
    assert any("other side rank 1 has not called" in line for line in verdict.diagnosis.evidence)


def test_waiting_leads_through_stages():
    """A stage that waits for data itself is not to blame: the chain leads to the stage that sends nothing."""
    (verdict,) = judged(*pipeline(("", "started", "", "started"))).verdicts
    assert verdict.culprits == (0,)
    assert verdict.only_wait == (1, 2)
    assert [line.rpartition(" ")[2] for line in verdict.chain] == ["1", "0"]


def test_a_transfer_that_both_sides_have_called_has_two_suspects():
    """Where both have called their part and the data does not arrive, neither is named alone."""
    (verdict,) = judged(*pipeline(("started", "started", "", "started"))).verdicts
    assert (verdict.diagnosis.cause, verdict.culprits, verdict.sure) == ("stuck_inside", (0, 1), False)


def test_a_send_that_ended_early_has_been_called():
    """NCCL may end a small send before it is received: the sender has called it, and is not blamed alone."""
    sender = dump([p2p(0, "send", 1, seq) for seq in (1, 2, 3)], 2)
    receiver = dump([p2p(1, "recv", 0, 1), p2p(1, "recv", 0, 2, "started")], 2)
    (verdict,) = judged(sender, receiver).verdicts
    assert (verdict.diagnosis.cause, verdict.culprits) == ("stuck_inside", (0, 1))
    assert not verdict.sure


def test_a_call_that_ended_after_an_open_one_is_judged():
    """A dump may show a send as open and a later one as ended: the first is the one that is waited in."""
    sender = dump([p2p(0, "send", 1, 1, "started"), p2p(0, "send", 1, 2)], 2, first=9)
    (verdict,) = judged(sender, dump([], 2)).verdicts
    assert verdict.culprits == (1,)


def test_a_rank_that_waits_for_itself_is_named():
    """A send to oneself that nothing receives is a bug of the job, by that rank."""
    (verdict,) = judged(dump([p2p(0, "send", 0, 1, "started")], 2), dump([], 2)).verdicts
    assert (verdict.diagnosis.cause, verdict.culprits) == ("collective_order_mismatch", (0,))


def test_two_ranks_that_send_first_wait_for_each_other():
    """Two ranks of which each sends before it receives are in a cycle."""
    dumps = [dump([p2p(rank, "send", 1 - rank, 1, "started")], 2) for rank in range(2)]
    (verdict,) = judged(*dumps).verdicts
    assert (verdict.diagnosis.cause, verdict.culprits) == ("collective_order_mismatch", (0, 1))


def test_sizes_that_differ_are_a_mismatch():
    """A send that meets a receive of another size is a mismatch of these two ranks."""
    sender = dump([p2p(0, "send", 1, 1, "started")], 2)
    receiver = dump([p2p(1, "recv", 0, 1, "started", input_sizes=[[8]])], 2)
    (verdict,) = judged(sender, receiver).verdicts
    assert (verdict.diagnosis.cause, verdict.culprits) == ("size_or_syntax_mismatch", (0, 1))
    assert [op.size_bytes for op in verdict.diagnosis.operations] == [16, 32]


def test_the_state_of_a_batch_is_that_of_its_sends_and_receives():
    """In a batch, single calls stay scheduled: what has ended is shown by the entry for the batch."""

    def batch(rank, state):
        both = [p2p(rank, kind, 1 - rank, 1, "scheduled") for kind in ("send", "recv")]
        return [*both, p2p(rank, "send", 1 - rank, 1, state, profiling_name="nccl:coalesced", is_p2p=False)]

    assert judged(*(dump(batch(rank, "completed"), 2) for rank in range(2))).verdicts == ()
    stuck = dump(batch(0, "started"), 2)
    (verdict,) = judged(stuck, dump([], 2)).verdicts
    assert verdict.culprits == (1,)


def test_the_missing_file_of_a_stage_is_suspected():
    """If nothing is known of the stage that all wait for, that is said."""
    (verdict,) = judged(*pipeline(("started", "", "", "started")), lost={1}).verdicts
    assert (verdict.culprits, verdict.no_file, verdict.sure) == ((1,), (1,), False)


@pytest.mark.parametrize("kind", [SimFaultKind.HUNG, SimFaultKind.KILLED])
@pytest.mark.parametrize("seed", range(4))
def test_a_rank_of_a_simulated_pipeline_is_named(tmp_path, kind, seed):
    """In a job of tensor groups and pipelines, the rank that hangs is named or is among the suspects."""
    ops = (
        StepOp("all_reduce", 1 << 20, 0.01, RankGroup("tensor", 4, 1)),
        StepOp("send", 1 << 20, 0.01, RankGroup("pipeline", 4, 4)),
    )
    job, rank = SimJob(16, ops, seed=seed, window_s=0.5, ranks_per_host=2), 3 * seed + 2
    windows = [one for tick in simulate(job, [SimFault(kind, rank, 0.5)], 2.0) for one in tick.windows]
    readings = [parse(data, tmp_path / name) for name, data in WRITERS["flight-recorder"](history(windows))]
    (verdict,) = judge(one_job(readings, []), ranks=16).verdicts
    assert rank in verdict.culprits
    assert len(verdict.culprits) == 1 or not verdict.sure
