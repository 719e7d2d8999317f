"""A link that carries all that it can is congested; one that marks packets and carries less is slow."""

import random

import pytest
from c4d_congestion import HOSTS, LINKS, ONSET_S, RECEIVER, UPLINK, Burst, judged, soak
from c4d_telemetry import MIX
from night_cases import at_night

from c4bench.c4d.observe.shared_fabric import CarriedTraffic
from c4bench.cli.main import main
from c4bench.model.benign import Benign
from c4bench.model.recording import TrafficCarried
from c4bench.record import RunDirectory
from tools.sim.job import simulate
from tools.sim.model import SimFault, SimFaultKind, SimJob
from tools.sim.places import nic_of


def series(link):
    """A link, and the other links that all paths across it may cross as well: the next ones on the way."""
    spine = next(part for part in link.split(">") if part.startswith("spine"))
    near = "leaf0" if link.startswith("leaf0") or link.endswith("leaf1") else "leaf1"
    far = "leaf1" if near == "leaf0" else "leaf0"
    return {f"{near}>{spine}", f"{spine}>{far}"}


@pytest.mark.parametrize(
    ("link", "share", "jobs"),
    [
        pytest.param(UPLINK, 0.5, 1, id="a neighbour's burst"),
        pytest.param(UPLINK, 0.75, 3, id="an uplink that four jobs oversubscribe", marks=pytest.mark.nightly),
        pytest.param(RECEIVER, 6 / 7, 6, id="an incast of seven senders", marks=pytest.mark.nightly),
    ],
)
def test_a_full_link_is_congested(link, share, jobs):
    """Others take what the job lacks: nothing is named, and the congestion is noted once, with the full link."""
    found, benign = judged(1, [Burst(link, share, ONSET_S, 5.5, jobs)])
    assert found == []
    (slowdown,) = benign
    assert (slowdown.reason, slowdown.links) == (Benign.CONGESTION, (link,))
    assert ONSET_S - 0.3 <= slowdown.onset_s <= slowdown.explained_s < ONSET_S + 1.0
    assert slowdown.figures["marked_packets"] > 0


def test_a_receiver_of_an_incast_sends_slowly_as_well():
    """What answers it waits in the same queue as what others send to it: that is congestion too, and no slow NIC."""
    answered_late = [("h5/0>leaf1", 0.4, ONSET_S)]
    found, benign = judged(1, [Burst(RECEIVER, 6 / 7, ONSET_S, 7.0, 6)], answered_late)
    assert found == []
    assert {slowdown.links for slowdown in benign} == {(RECEIVER,)}
    (slow,), _ = judged(1, [], answered_late)
    assert (slow.component.name, slow.component.side) == ("h5/0", "tx")


def test_a_path_that_is_used_to_less_denies_no_congestion():
    """One of seven senders has long been slower than the burst makes the others: these show that the link is full."""
    always = Burst("h1/0>leaf0", 0.3, 0.0, 7.0)
    found, benign = judged(1, [always, Burst(RECEIVER, 0.14, ONSET_S, 5.5, 4)])
    assert found == []
    assert {slowdown.links for slowdown in benign} == {(RECEIVER,)}


@pytest.mark.parametrize("link", [RECEIVER, *at_night(UPLINK)])
def test_a_clock_that_was_set_back_hides_no_marks(link):
    """Half a second after a receiver's clock was set back by more than that, its marks count."""
    found, benign = judged(1, [Burst(link, 0.5, ONSET_S, 5.5)], steps={"h5": (ONSET_S - 0.5, -1.7)})
    assert found == []
    assert {slowdown.links for slowdown in benign} == {(link,)}


@pytest.mark.parametrize("link", [RECEIVER, *at_night(UPLINK)])
def test_messages_that_count_when_they_end_leave_a_link_full(link):
    """A full link that seems to carry less for some spans, since others' messages end before or after, is congested."""
    found, benign = judged(1, [Burst(link, 0.5, ONSET_S, 8.0, shown=(1.16, 1.16, 0.88, 0.88, 0.88))], duration_s=8.0)
    assert found == []
    assert {slowdown.links for slowdown in benign} == {(link,)}


def test_without_marks_nothing_is_congested():
    """NICs that count no marks show no queue: the slow link is named as before, however much others carry."""
    found, benign = judged(1, [Burst(UPLINK, 0.5, ONSET_S, 5.5)], ecn=False)
    assert [diagnosis.component.kind for diagnosis in found] == ["link"]
    assert benign == []


@pytest.mark.parametrize("seed", [0, *at_night(1, 2)])
def test_a_slow_link_that_marks_is_named(seed):
    """A link carries less than its rate, most often with other jobs beside: its marks do not hide that it is slow."""
    link, found, benign = slow_link(seed)
    assert [diagnosis.component.name in series(link) for diagnosis in found] == [True]
    assert benign == []


@pytest.mark.nightly
@pytest.mark.parametrize("shard", range(6))
def test_many_slow_links_are_named(shard):
    """All of 60 slow links are named: a shard is ten of them."""
    for seed in range(21_000 + 10 * shard, 21_000 + 10 * (shard + 1)):
        link, found, benign = slow_link(seed)
        assert [diagnosis.component.name in series(link) for diagnosis in found] == [True], f"seed {seed}"
        assert benign == [], f"seed {seed}"


def slow_link(seed):
    """A link with a drawn part of its rate, what is named, and what is explained."""
    draw = random.Random(seed)
    link, factor = draw.choice([one for one in LINKS if "spine" in one]), draw.uniform(0.3, 0.85)
    share = draw.uniform(0.1, 0.8) * factor
    beside = [Burst(link, share, ONSET_S, 7.0, draw.randint(1, 5))] if draw.random() < 0.7 else []
    return link, *judged(seed, beside, [(link, factor, ONSET_S)])


def test_a_link_that_becomes_slow_while_it_is_congested_is_named():
    """The burst of a neighbour is explained; when the link then loses half of what it can carry, it is named."""
    burst = Burst(UPLINK, 0.4, ONSET_S, 9.0)
    found, benign = judged(2, [burst], [(UPLINK, 0.5, 5.5)], 9.0)
    assert [slowdown.reason for slowdown in benign] == [Benign.CONGESTION]
    (diagnosis,) = found
    assert diagnosis.component.name in series(UPLINK)
    assert diagnosis.alarmed_s > 5.5


def test_a_recording_tells_of_congestion_again(tmp_path, capsys):
    """`c4bench detect` on what the detector has ingested prints the slowdown, the full link and the marks."""
    heard = []
    _, (slowdown,) = judged(1, [Burst(UPLINK, 0.5, ONSET_S, 5.5)], duration_s=5.0, heard=heard)
    RunDirectory(tmp_path).save_telemetry("job", heard)
    assert main(["detect", str(tmp_path / "telemetry/job.jsonl")]) == 0
    told = capsys.readouterr().out
    assert f"{slowdown.explained_s:.3f} s  job: no fault but congestion, {slowdown.component} is slower" in told
    assert all(line in told for line in slowdown.evidence)


def test_the_traffic_of_others_is_their_mean_over_the_time():
    """Spans of a job count by how long they fall into the time; one's own count for nothing, nor do others outside."""
    carried = CarriedTraffic()
    for job, opened_s, closed_s, bps in [
        ("mine", 1.0, 2.0, 9.0),
        ("a", 0.5, 1.5, 2.0),
        ("a", 1.5, 2.5, 4.0),
        ("b", 1.75, 3.0, 8.0),
        ("b", 3.0, 4.0, 100.0),
    ]:
        carried.ingest(TrafficCarried(job, opened_s, closed_s, {"x": bps}))
    assert carried.beside("mine", "x", 1.0, 2.0) == pytest.approx(3.0 + 8.0)
    assert carried.beside("mine", "y", 1.0, 2.0) == 0.0


def test_simulated_nics_count_what_stood_in_a_queue():
    """Receivers of a slow path count marked packets while it is slow, others and NICs without ECN none."""
    fault = SimFault(SimFaultKind.PATH_RATE, 2, 0.5, 1.5, 0.5, peer=6)
    job = SimJob(HOSTS, MIX, ecn=True)
    ticks = list(simulate(job, [fault], 2.0))
    marks = {nic.nic: nic.ecn_marked for window in ticks[-1].windows for nic in window.nics}
    assert marks[nic_of(job, 6)] > 0
    assert set(marks.values()) == {0, marks[nic_of(job, 6)]}
    assert not any(window.nics for tick in simulate(SimJob(HOSTS, MIX), [fault], 0.5) for window in tick.windows)


@pytest.mark.parametrize("seed", [0, *at_night(1)])
def test_jobs_beside_others_are_silent(seed):
    """Bursts, oversubscribed links and incasts alarm nobody, and congestion is noted."""
    found, benign, _ = soak(seed, 100)
    assert found == []
    assert {slowdown.reason for slowdown in benign} == {Benign.CONGESTION}


@pytest.mark.nightly
@pytest.mark.parametrize("shard", range(20))
def test_many_jobs_beside_others_are_silent(shard):
    """No false alarm in 200 jobs of 300 iterations each: a shard is ten of them."""
    for seed in range(20_000 + 10 * shard, 20_000 + 10 * (shard + 1)):
        found, _, _ = soak(seed, 300)
        assert found == [], f"seed {seed}"
