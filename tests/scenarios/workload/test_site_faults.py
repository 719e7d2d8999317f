"""Four sites, of which one is cut off, loses a worker or is slow: the others go on, and agree to the bit."""

import time

import msgspec
import pytest
from together import train_together

from c4bench.model.measurement import Clock
from c4bench.workload.diloco.parameters import Diloco

pytestmark = pytest.mark.usefixtures("four_sites")

SMALL = {"model": {"layers": 2, "width": 16, "context": 16}, "inner_steps": 12, "fragments": 2, "sequences": 1}
STEP_S, OVERLAP, SPACING = 0.25, 2, 4
FAULTY = {"quorum": 3, "grace_s": 1.0, "overlap": OVERLAP, "compute_s": STEP_S} | SMALL
CUT_SHARE = 0.2  # of the time
# The port that leads from the last site over the long link, and the only way from its hosts to that port.
LONG_LINK, WAY_OUT = "border3/side0", "border3/down0"
DONE_S = 300.0


def digests(trained, sites):
    """By turn, what those of these sites that took the outer step have as outer parameters after it."""
    found = {}
    for report in trained:
        for turn in report["turns"]:
            if report["site"] in sites and report["site"] in turn["sites"]:
                found.setdefault(turn["number"], set()).add(turn["digest"])
    return found


@pytest.fixture
def agreed(measure):
    """Hold the share of turns after which all of these sites' workers had the same bits against 1."""

    def check(trained, sites):
        found = digests(trained, sites)
        share = sum(len(each) == 1 for each in found.values()) / len(found)
        measure("diloco.survivors_identical", share, equals=1, clock=Clock.NONE)

    return check


def used_of(trained):
    """The sites whose contributions each turn used, as the first rank saw it."""
    return [tuple(turn["sites"]) for turn in trained[0]["turns"]]


@pytest.fixture
def as_good(measure):
    """Hold the last evaluation against that of the same training without a fault, at equal tokens."""

    def check(running):
        parameters = msgspec.convert(running.spec.parameters, Diloco)
        undisturbed = train_together(parameters, running.spec.seed).final
        (final,) = {
            float.fromhex(report["loss"])
            for report in running.reports("evaluation")
            if report["step"] == parameters.steps
        }
        measure("diloco.loss_after_fault", final / undisturbed, at_most=1.01, clock=Clock.NONE)

    return check


@pytest.mark.nightly
@pytest.mark.needs(hosts=8)
@pytest.mark.parametrize("port", [pytest.param(WAY_OUT, id="way-out"), pytest.param(LONG_LINK, id="long-link")])
def test_a_site_is_cut_off(train, inject, agreed, as_good, measure, port):
    """Cut off for a fifth of the time, a site misses its turns and catches up; the others do not wait for it."""
    steps = 96
    running = train(4, 2, sited=2, steps=steps, **FAULTY)
    running.until("losses", 1, DONE_S)
    with inject("link.blackhole", at=port, direction="both", lease_s=60.0) as fault:
        time.sleep(max(0.0, fault.observed_s + CUT_SHARE * steps * STEP_S - time.time()))
    trained = running.wait("trained", DONE_S)
    used = used_of(trained)
    assert (0, 1, 2) in used
    assert used[-1] == (0, 1, 2, 3)
    agreed(trained, {0, 1, 2, 3})
    last = {
        digest for number, each in digests(trained, {0, 1, 2, 3}).items() if number >= len(used) - 3 for digest in each
    }
    assert len(last) == 3
    as_good(running)
    share = sum(map(len, used)) / (4 * len(used))
    usual_s = steps * STEP_S
    goodput = share * usual_s / max(each["elapsed_s"] for each in trained)
    measure("diloco.goodput", goodput, at_least=0.9, method="diloco")


@pytest.mark.nightly
@pytest.mark.needs(hosts=8)
def test_data_parallel_with_a_site_cut_off(train, inject, shared, measure):
    """Data-parallel stands still while one of four sites is cut off, and repeats the steps since its checkpoint."""
    steps = 96
    saved = {"checkpoints": str(shared), "checkpoint_every": 12, "method": "data_parallel", "quorum": 0}
    first = train(4, 2, sited=2, steps=steps, **(FAULTY | saved))
    began_s = time.time()
    first.until("losses", 1, DONE_S)
    with inject("link.blackhole", at=WAY_OUT, direction="both", lease_s=60.0) as fault:
        time.sleep(max(0.0, fault.observed_s + CUT_SHARE * steps * STEP_S - time.time()))
    first.stop()
    second = train(4, 2, sited=2, steps=steps, **(FAULTY | saved))
    second.wait("trained", DONE_S)
    measure("diloco.goodput", steps * STEP_S / (time.time() - began_s), method="data_parallel")


@pytest.mark.nightly
@pytest.mark.needs(hosts=8)
def test_a_long_link_flaps(train, inject, agreed, as_good):
    """A long link goes down for a second and up again, three times: the site behind it misses turns and catches up."""
    running = train(4, 2, sited=2, steps=96, **FAULTY)
    running.until("losses", 1, DONE_S)
    for _ in range(3):
        with inject("link.down", at=LONG_LINK, lease_s=20.0):
            time.sleep(1.0)
        time.sleep(2.0)
    trained = running.wait("trained", DONE_S)
    assert used_of(trained)[-1] == (0, 1, 2, 3)
    agreed(trained, {0, 1, 2, 3})
    as_good(running)


@pytest.mark.nightly
@pytest.mark.needs(hosts=8)
def test_a_long_link_loses_packets(train, inject, agreed, as_good):
    """One packet in fifty is lost on a long link: the transport sends again, and all four sites take part."""
    running = train(4, 2, sited=2, steps=96, **FAULTY)
    running.until("losses", 1, DONE_S)
    with inject("link.loss", at=LONG_LINK, direction="both", probability=0.02, lease_s=60.0):
        trained = running.wait("trained", DONE_S)
    assert used_of(trained)[-1] == (0, 1, 2, 3)
    agreed(trained, {0, 1, 2, 3})
    as_good(running)


@pytest.mark.usefixtures("atlas")
@pytest.mark.needs(hosts=8)
def test_a_cut_is_named(train, inject, cluster, ports, measure):
    """A site's only way out loses everything: C4D names it within two outer steps of a turn that it touches.

    Steps are long, as real ones are, so that the transport's own retries fit into the overlap.
    """
    running = train(4, 2, sited=2, steps=24, **(FAULTY | {"compute_s": 1.0, "profile": "patient", "grace_s": 5.0}))
    running.until("losses", 1, DONE_S)
    with inject("link.blackhole", at=WAY_OUT, direction="both", lease_s=60.0) as fault:
        trained = running.wait("trained", DONE_S)
    time.sleep(3.0)  # the job's end is nothing to be reported either
    found = cluster.diagnoses(running.spec.id)
    assert found, "C4D says nothing of a site that is cut off"
    touched_s = min(turn["began_s"] for turn in trained[0]["turns"] if turn["ended_s"] > fault.onset_s)
    measure("diloco.name_outer_steps", (found[0].named_s - touched_s) / SPACING, at_most=2)
    astray = sum(ports.addresses[WAY_OUT].isdisjoint(suspects(one)) for one in found)
    measure("diloco.false_alarms", astray, at_most=0, clock=Clock.NONE)


def suspects(found):
    """The names of whom a diagnosis blames, and of those that it cannot tell from that."""
    return {one.name for one in found.suspects}


@pytest.mark.nightly
@pytest.mark.needs(hosts=8)
def test_a_worker_is_killed(train, inject, agreed):
    """A killed worker takes its site out of the job; the other three sites go on to the end."""
    running = train(4, 2, sited=2, steps=48, **FAULTY)
    running.until("losses", 1, DONE_S)
    victim = running.spec.members[7]
    with inject("process.kill", host=victim.host, job=running.spec.id, rank=victim.rank):
        trained = running.until("trained", 7, DONE_S)
    assert {report["site"] for report in running.reports("left")} == {3}
    survivors = sorted((report for report in trained if report["site"] != 3), key=lambda report: report["rank"])
    assert used_of(survivors)[-1] == (0, 1, 2)
    agreed(survivors, {0, 1, 2})


@pytest.mark.nightly
@pytest.mark.needs(hosts=8)
def test_a_site_is_slow(train, inject, agreed):
    """A site that computes four times as long is left out when it is too late, and joins again."""
    running = train(4, 2, sited=2, steps=96, **FAULTY)
    running.until("losses", 1, DONE_S)
    victim = running.spec.members[6]
    with inject("process.slow", host=victim.host, job=running.spec.id, rank=victim.rank, factor=4.0, lease_s=40.0):
        time.sleep(10.0)
    trained = running.wait("trained", DONE_S)
    assert (0, 1, 2) in used_of(trained)
    agreed(trained, {0, 1, 2, 3})
