"""Events of RAS's monitor mode: processes that stopped answering, alone and beside other files of the job."""

import json
from pathlib import Path

import pytest
from evidence_mutations import EVENT_JSON, EVENT_TEXT

from c4bench.evidence.collect import one_job, parse
from c4bench.evidence.judging.judge import judge

GREETING = b"RAS Monitor Mode - watching for peer changes (Ctrl+C to exit)...\n" + b"=" * 64 + b"\n"


@pytest.mark.parametrize("data", [EVENT_TEXT, GREETING + EVENT_TEXT, EVENT_JSON, EVENT_JSON * 2])
def test_a_dead_process_is_named_by_its_host(data):
    """The example of NCCL's guide, as text or JSON, names the host of the process that is dead."""
    (verdict,) = judge(parse(data, Path("events"))).verdicts
    assert str(verdict.diagnosis.component) == "host 172.16.64.245"
    assert (verdict.diagnosis.cause, verdict.ras) == ("process_ended", "DEAD")


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_process_that_answers_again_is_not_named(form):
    """The newest event of a process counts; events of peers that are known by address only are passed over."""

    def event(name, peer="Process 7 on node 10.0.0.7 managing GPU 0"):
        if form == "text":
            return f"[2026-01-01 10:00:00] {name}: {peer} details\n"
        known = {"host": "10.0.0.7", "pid": 7} if "Process" in peer else {"addr": peer}
        return json.dumps({"event": name, "peer": known, "details": ""}, indent=2) + "\n"

    stuck = [event("PEER_CONNECTING"), event("PEER_UNRESPONSIVE"), event("PEER_RETRY"), event("PEER_DEAD", "10.0.0.9")]
    (verdict,) = judge(parse("".join(stuck).encode(), Path("events"))).verdicts
    assert verdict.diagnosis.cause == "process_stopped"
    well = parse("".join([*stuck, event("PEER_RECOVERED")]).encode(), Path("events"))
    assert (judge(well).verdicts, well.problems) == ((), ())


def test_an_event_names_the_rank_with_a_report():
    """Beside a report of RAS, which knows the ranks of processes, an event names the rank."""
    ranks = [{"rank": rank, "host": f"10.0.0.{rank}", "pid": 7, "collective_counts": {"AllReduce": 5}}
             for rank in range(3) if rank != 1]  # fmt: skip
    gone = [{"rank": 1, "host": "10.0.0.1", "pid": 7, "status": {"unresponsive": True}}]
    comm = {"hash": "0x1", "size": 3, "ranks": ranks, "missing_ranks": gone}
    report = parse(json.dumps({"nccl_version": "2.30.1", "communicators": [comm]}).encode(), Path("ras.json"))
    events = parse(EVENT_TEXT.replace(b"1524345", b"7").replace(b"172.16.64.245", b"10.0.0.1"), Path("events.txt"))
    verdicts = judge(one_job([report, events], [])).verdicts
    assert {verdict.culprits for verdict in verdicts} == {(1,)}


def test_an_event_that_is_cut_is_said():
    """A file that is cut within an event, as one that grows, gives the events before it, and the place."""
    reading = parse(EVENT_JSON + EVENT_JSON[:60], Path("events"))
    assert [member.status for member in reading.members] == ["dead"]
    assert [problem.place for problem in reading.problems] == ["event 2"]
