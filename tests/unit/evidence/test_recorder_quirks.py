"""What backends and versions of PyTorch write differently in a flight recorder dump."""

import json
import pickle
import pprint
from pathlib import Path

import pytest

from c4bench.evidence.collect import one_job, parse
from c4bench.evidence.judging.judge import judge
from c4bench.evidence.limits import UnreadableError
from c4bench.model.evidence import CallState


def entry(seq, **other):
    fields = {
        "record_id": seq,
        "pg_id": 0,
        "process_group": ["0", "default_pg"],
        "collective_seq_id": seq,
        "is_p2p": False,
        "profiling_name": "nccl:all_reduce",
        "input_sizes": [[4]],
        "input_dtypes": ["Float"],
        "state": "completed",
        "retired": True,
        "time_created_ns": 10 * seq,
    }
    return fields | other


def dump(*entries, **other):
    return {"version": "2.4", "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2]"}},
            "entries": list(entries)} | other  # fmt: skip


def verdicts(*dumps):
    readings = [parse(json.dumps(one).encode(), Path(f"rank_{rank}")) for rank, one in enumerate(dumps)]
    return judge(one_job(readings, [])).verdicts


def test_counts_alone_name_the_rank_that_did_not_come():
    """Dumps without entries still tell by their status, whose numbers JSON writes as text, who came how far."""
    counted = [{"version": "2.10", "pg_config": {}, "pg_status": {"0": {"last_enqueued_collective": str(last)}}}
               for last in (7, 7, 6)]  # fmt: skip
    (verdict,) = verdicts(*counted)
    assert verdict.culprits == (2,)


def test_a_timed_out_call_is_not_taken_for_completed():
    """A call that is retired and not completed has ended in some way; a status that counts it is not believed."""
    status = {"0": {"last_enqueued_collective": 5, "last_completed_collective": 5}}
    stuck = dump(entry(4), entry(5, state="scheduled"), pg_status=status)
    (verdict,) = verdicts(stuck, dump(entry(4)), stuck)
    assert verdict.culprits == (1,)


def test_a_call_without_a_name_matches_any():
    """An empty name says nothing of the kind, so it is no mismatch."""
    assert verdicts(dump(entry(1, profiling_name="")), dump(entry(1)), dump(entry(1))) == ()


@pytest.mark.parametrize("none", [None, 0, "", "soon"])
def test_missing_times_are_no_times(none):
    """Times that are None, 0, empty or no number are not known, and nothing else suffers."""
    late = dump(
        entry(1), entry(2, state="started", retired=False, time_created_ns=none, time_discovered_started_ns=none)
    )
    (verdict,) = verdicts(late, late, dump(entry(1)))
    assert verdict.culprits == (2,)
    assert verdict.diagnosis.onset_s == 0.0


def test_ranks_that_all_entered_are_suspected_together():
    """If every rank has called the operation and it does not end, no rank is named alone."""
    inside = dump(entry(1), entry(2, state="started", retired=False))
    (verdict,) = verdicts(inside, inside, inside)
    assert (verdict.diagnosis.cause, verdict.culprits, verdict.sure) == ("stuck_inside", (0, 1, 2), False)
    assert verdict.diagnosis.component.kind == "job"


def test_roots_may_put_in_another_size():
    """Ranks of a scatter differ lawfully in size; ranks of an all-reduce do not."""
    other = {"input_sizes": [[8]]}
    scatter = {"profiling_name": "nccl:scatter"}
    assert verdicts(dump(entry(1, **scatter, **other)), dump(entry(1, **scatter)), dump(entry(1, **scatter))) == ()
    (verdict,) = verdicts(dump(entry(1, **other)), dump(entry(1)), dump(entry(1)))
    assert (verdict.diagnosis.cause, verdict.culprits) == ("size_or_syntax_mismatch", (0,))


def test_sequence_numbers_as_text_are_numbers():
    """A number that is written as text counts as the number; one of 100 digits as none, and is reported."""
    reading = parse(json.dumps(dump(entry(1, collective_seq_id="1"), entry(2, collective_seq_id="9" * 100))).encode(),
                    Path("rank_0"))  # fmt: skip
    assert [(call.seq, call.state) for call in reading.members[0].calls] == [(1, CallState.COMPLETED)]
    assert [problem.place for problem in reading.problems] == ["entries"]


def test_a_version_to_come_is_refused():
    """A format of another major version is refused with its number, not guessed at."""
    with pytest.raises(UnreadableError, match=r"3\.0"):
        parse(json.dumps(dump() | {"version": "3.0"}).encode(), Path("rank_0"))


@pytest.mark.parametrize("form", [json.dumps, pickle.dumps])
def test_the_default_group_says_how_many_ranks_the_job_has(form):
    """The list of all ranks in a dump gives the job's size, also of a job whose list is a text of 100 kB."""
    everybody = {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(20_000)))}}
    data = form(dump(entry(1, process_group=["7", "row"]), pg_config=everybody))
    reading = parse(data if isinstance(data, bytes) else data.encode(), Path("rank_3"))
    assert reading.ranks == 20_000


def test_a_printed_dump_is_the_saved_one():
    """A dump that Python has printed, with texts that have quotes and escapes, tells what its JSON tells."""
    one = dump(entry(1, process_group=("7", "it's \"a\\\\b\n\x07 é"), frames=(), retired=None, is_p2p=False))
    printed = parse(repr(one).encode(), Path("rank_0"))
    assert printed == parse(json.dumps(one).encode(), Path("rank_0"))
    assert parse(pprint.pformat(one, width=40).encode(), Path("rank_0")) == printed


@pytest.mark.parametrize("end", [b"", b"}", b"__import__('os')}", b"'\\N{no such}'}", b"(" * 50_000, b"nan}"])
def test_a_printed_dump_that_is_damaged_is_refused(end):
    """What is cut, is no plain data, nests deeply or has an escape that is none, is refused with a reason."""
    with pytest.raises(UnreadableError):
        parse(b"{'version': '2.4', 'pg_config': {}, 'entries': " + end, Path("rank_0"))


REPORT = """\
Collective sequence number: 7 has errors
internal record id: 6
group info: 3:rows
collective: nccl:all_reduce
input sizes: [[4]]
world size: 3
expected ranks: {1, 5, 9}
collective state: scheduled
error msg: Culprit rank 9; Error type: SIZE_OR_SYNTAX_MISMATCH, Expected input sizes: '[[4]]' does not match \
found input sizes: '[[8, 2]]'
collective stack trace:
Not all ranks joining collective 8
group info: 3:rows
expected ranks: {1, 5
"""


def test_a_report_of_torchfrtrace_tells_of_calls():
    """A size that differs is a mismatch of the rank that torchfrtrace names; a report that is cut is a problem."""
    reading = parse(REPORT.encode(), Path("out.txt"))
    assert [problem.place for problem in reading.problems] == ["line 11"]
    (verdict,) = judge(one_job([reading], [])).verdicts
    assert (verdict.diagnosis.cause, verdict.culprits) == ("size_or_syntax_mismatch", (9,))


DTYPES = "Expected dtypes: '{'Float'}' does not match found dtype: '{'Float'}/{'Half'}/{'Half'}'"
STATES = "Expected state: 'completed' does not match found state: 'scheduled'"


@pytest.mark.parametrize(
    ("error", "cause"),
    [(f"COLLECTIVE_DTYPE_MISMATCH, {DTYPES}", "dtype"), (f"COLLECTIVE_STATE_MISMATCH, {STATES}", "stuck")],
)
def test_other_errors_of_torchfrtrace(error, cause):
    """A type that differs is a mismatch; a state that differs leaves the rank that has not ended the call."""
    lines = ["error msg: Culprit rank 9; Error type: " + error if line.startswith("error") else line
             for line in REPORT.partition("Not all")[0].splitlines()]  # fmt: skip
    (verdict,) = judge(one_job([parse("\n".join(lines).encode(), Path("out.txt"))], [])).verdicts
    assert cause in verdict.diagnosis.cause
    assert verdict.culprits == (9,)
