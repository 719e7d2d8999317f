"""What speaks for and against each hypothesis behind a finding, as `c4bench detect --explain` prints it."""

import json

import jsonschema
import pytest
from c4d_congestion import ONSET_S, UPLINK, Burst, judged
from c4d_telemetry import MIX, ticks
from test_c4d_missing import PAIR, slower, ways
from test_c4d_trains import RING, Network, doubted, nic

from c4bench.c4d.confidence import behind
from c4bench.c4d.detector import Detector
from c4bench.c4d.explainer import probed_hypotheses
from c4bench.c4d.ingest.shared_fabric import SharedFabric
from c4bench.c4d.offline import detect
from c4bench.cli.explanations import explained_lines
from c4bench.cli.main import main
from c4bench.model.benign import Benign
from c4bench.model.diagnosis import Cause, Component
from c4bench.model.hypothesis import Fact, Standing
from c4bench.model.recording import ProbingEnded, TrafficArrival
from c4bench.record.telemetry import to_lines
from tools.documents.schemas import schemas
from tools.sim.model import SimFault, SimFaultKind, SimJob

FAULTS = {
    Cause.TRANSFER_SLOW: SimFault(SimFaultKind.NIC_RATE, 2, 2.0, factor=0.25, side="rx"),
    Cause.COMPUTE_SLOW: SimFault(SimFaultKind.COMPUTE, 2, 2.0, factor=1.5),
    Cause.PROCESS_STOPPED: SimFault(SimFaultKind.STOPPED, 2, 2.0),
    Cause.PROCESS_ENDED: SimFault(SimFaultKind.KILLED, 2, 2.0),
    Cause.COLLECTIVE_TYPE_MISMATCH: SimFault(SimFaultKind.MISMATCH, 2, 2.0),
    Cause.CONNECTION_STALLED: SimFault(SimFaultKind.PATH_RATE, 2, 2.0, factor=0.0, peer=3),
}


def windows(cause):
    """What agents send of a job with the fault behind a cause."""
    return [one for tick in ticks(SimJob(5, MIX, seed=8), (FAULTS[cause],), 4.2) for one in tick.windows]


def explained(cause):
    """The explanation of the one finding with that cause."""
    detector = Detector(explaining=True)
    diagnoses = detect(windows(cause), detector)
    explanations = detector.poll_explanations()
    assert [one.diagnosis for one in explanations] == diagnoses
    return next(one for one in explanations if one.diagnosis.cause is cause)


def facts(hypothesis):
    """The facts for a hypothesis, and those against it."""
    return {fact.fact for fact in hypothesis.speaks_for}, {fact.fact for fact in hypothesis.speaks_against}


@pytest.mark.parametrize("cause", FAULTS)
def test_what_is_named_has_something_that_speaks_for_it(cause):
    """The first hypothesis is the named component, then come its alternatives; a line is printed for each argument."""
    explanation = explained(cause)
    diagnosis, (named, *others) = explanation.diagnosis, explanation.hypotheses
    assert (named.what, named.standing) == (diagnosis.component, Standing.NAMED)
    assert named.speaks_for
    alike = [one.what for one in others if one.standing is Standing.ALTERNATIVE]
    assert alike == list(diagnosis.alternatives)
    arguments = [fact for one in explanation.hypotheses for fact in (*one.speaks_for, *one.speaks_against)]
    assert len(list(explained_lines(explanation))) >= len(arguments) + len(explanation.hypotheses)


@pytest.mark.parametrize("cause", FAULTS)
def test_explaining_changes_no_finding(cause):
    """The same findings are named with and without explanations, and without there are none."""
    detector = Detector()
    assert detect(windows(cause), detector) == detect(windows(cause), Detector(explaining=True))
    assert detector.poll_explanations() == []


def test_a_slow_receiver_is_told_from_its_senders_and_from_benign_causes():
    """Its cells speak for it; of each sender most cells are well; nothing speaks for what is benign."""
    hypotheses = {one.what: one for one in explained(Cause.TRANSFER_SLOW).hypotheses}
    receiver = next(one for one in hypotheses.values() if one.standing is Standing.NAMED)
    assert facts(receiver)[0] >= {Fact.CELL_SLOW, Fact.SLOW_AS_A_WHOLE}
    senders = [one for what, one in hypotheses.items() if isinstance(what, Component) and what.side == "tx"]
    assert senders
    assert all({Fact.CELLS_WELL, Fact.CELLS_ELSEWHERE} & facts(one)[1] for one in senders)
    assert all(one.standing is Standing.DROPPED for one in senders)
    benign = [hypotheses[what] for what in Benign]
    assert all(one.standing is Standing.DROPPED and one.speaks_against and not one.speaks_for for one in benign)


def test_traffic_that_arrived_then_speaks_for_another_job_though_it_met_nothing():
    """Another job began to send at the onset, over other links: that speaks for it, and the path is named anyway."""
    detector = Detector(SharedFabric(ways(PAIR)), explaining=True)
    arrival = TrafficArrival("other", 2.4, 2.8, frozenset({"h9/0"}), frozenset({"elsewhere"}), known=True)
    sent = [window for tick in ticks(PAIR, (slower(0, 1),), 5.5) for window in tick.windows]
    (diagnosis,) = detect([arrival, *sent], detector)
    assert diagnosis.component == Component("path", "h0/0>h1/0")
    found = {one.what: one for one in detector.poll_explanations()[0].hypotheses}
    assert facts(found[Benign.OTHER_JOB]) == ({Fact.TRAFFIC_ARRIVED}, set())
    assert found[Benign.OTHER_JOB].standing is Standing.DROPPED


def test_who_waits_for_a_stopped_rank_is_a_chain():
    """The chain ends at the rank that all wait for; its process speaks for it, and its port against its NIC."""
    hypotheses = explained(Cause.PROCESS_STOPPED).hypotheses
    (waited,) = [fact for fact in hypotheses[0].speaks_for if fact.fact is Fact.WAITED_FOR]
    assert waited.about[-1] == "rank 2"
    assert len(waited.about) > 1
    assert waited.figures["ranks"] == 4
    assert Fact.PROCESS in facts(hypotheses[0])[0]


def test_congestion_is_a_hypothesis_that_marks_and_a_full_link_speak_for():
    """Where congestion explains a slowdown, it is the named one, and the component is dropped."""
    detector = Detector(explaining=True)
    judged(1, [Burst(UPLINK, 0.5, ONSET_S, 5.5)], detector=detector)
    (explanation,) = detector.poll_explanations()
    congestion, *others = explanation.hypotheses
    assert (congestion.what, congestion.standing) == (Benign.CONGESTION, Standing.NAMED)
    assert facts(congestion)[0] == {Fact.MARKED, Fact.LINK_FULL}
    assert all(one.standing is Standing.DROPPED for one in others)
    assert explanation.slowdown.component in [one.what for one in others]


def test_without_marks_nobody_says_that_the_rates_of_links_are_unknown():
    """They are known; no packet came marked, so it is not known what the links carry, and only that is said."""
    detector = Detector(explaining=True)
    judged(1, [], [(UPLINK, 0.5, ONSET_S)], ecn=False, detector=detector)
    congestion = next(one for one in detector.poll_explanations()[0].hypotheses if one.what is Benign.CONGESTION)
    assert facts(congestion) == (set(), {Fact.MARKED})


def test_trains_speak_for_what_they_leave_and_against_the_rest():
    """Slow trains that cross a narrow NIC speak for it; those that are fast across a link speak against that."""
    suspects = [nic(), *RING]
    doubts, network = doubted(suspects), Network(narrow={"tx h0/0": 4.0})
    while flows := doubts.next_trains():
        doubts.ingest(network.round(flows))
    doubts.ingest(ProbingEnded(2.0, "job"))
    ((refined, alarmed_s),) = doubts.ended()
    diagnosis = refined.stamped("job", alarmed_s, 2.0)
    doubt = doubts.behind(diagnosis.suspects)
    named, *rest = probed_hypotheses(diagnosis, doubt)
    assert named.what == diagnosis.component
    assert all(2 * fact.figures["slow"] > fact.figures["trains"] for fact in named.speaks_for)
    assert named.speaks_for
    dropped = [one for one in rest if one.standing is Standing.DROPPED]
    assert {one.what for one in dropped} == set(suspects) - set(diagnosis.suspects)
    assert all(one.speaks_against for one in dropped)


def test_the_counts_are_those_that_the_confidence_comes_from():
    """The counts and one finding more, that is partly right, make the stated confidence."""
    explanation = explained(Cause.COMPUTE_SLOW)
    assert behind(explanation.diagnosis) == (explanation.right, explanation.seen)
    least, most = explanation.right / (explanation.seen + 1), (explanation.right + 1) / (explanation.seen + 1)
    assert least < explanation.diagnosis.confidence < most
    assert f"{explanation.right} of {explanation.seen} findings" in next(explained_lines(explanation))


def test_explanations_are_printed_as_text_and_as_json(tmp_path, capsys):
    """Text has the findings as ever with their hypotheses below; JSON agrees with its schema."""
    path = tmp_path / "telemetry.jsonl"
    path.write_bytes(b"".join(to_lines(windows(Cause.TRANSFER_SLOW))))
    assert main(["detect", str(path)]) == 0
    plain = capsys.readouterr().out.splitlines()
    assert main(["detect", "--explain", str(path)]) == 0
    text = capsys.readouterr().out.splitlines()
    assert [line for line in text if line in plain] == plain
    assert any(line.startswith("    > congestion, dropped") for line in text)
    assert main(["detect", "--explain", "--json", str(path)]) == 0
    (explanation,) = json.loads(capsys.readouterr().out)
    jsonschema.validate(explanation, json.loads(schemas()["explanation.schema.json"]))
    assert explanation["hypotheses"][0]["standing"] == "named"
