"""Streaming DiLoCo between two sites: what it learns, what it sends over the long link, and what C4D says of it."""

import time

import msgspec
import pytest
from together import train_together

from c4bench.cost.utilisation import Compute, Granularity, Schedule, needed_bandwidth
from c4bench.model.measurement import Clock
from c4bench.record.artefacts import LinkBytes, StepBytes
from c4bench.workload.diloco.parameters import Diloco
from c4bench.workload.models import backends

pytestmark = pytest.mark.usefixtures("two_sites")

SMALL = {"model": {"layers": 4, "width": 16, "context": 16}, "inner_steps": 12, "fragments": 2, "sequences": 1}
# 24 blocks in fragments of 3, as in the paper's smallest model.
DEEP = {"model": {"layers": 24, "width": 16, "context": 8}, "sequences": 1}
# Large fragments and long steps, beside which what turns take at any bandwidth is short.
LARGE = {"model": {"layers": 6, "width": 64, "context": 16}, "inner_steps": 12, "fragments": 2, "sequences": 1}
SLOW = {"compute_s": 0.2, "quantisation": "none", "profile": "patient"}
LONG_LINK, INSIDE = "between the sites", "inside the site"
LONG_LINK_BPS, LONG_LINK_S = 10e9, 5e-3
WHOLE = {"fragments": 1, "overlap": 0}
DONE_S = 300.0
EXPECTED = {}


@pytest.fixture
def identical(measure):
    """Hold a job's losses and its last evaluation against the same training in one process."""

    def check(running, steps, since=0):
        parameters = running.spec.parameters | {"steps": steps, "checkpoints": "", "checkpoint_every": 0}
        key = repr(sorted(parameters.items()))
        if key not in EXPECTED:
            EXPECTED[key] = train_together(msgspec.convert(parameters, Diloco), running.spec.seed)
        losses = running.losses()
        assert sorted(losses) == list(range(since, steps))
        same = sum(losses[step] == EXPECTED[key].losses[0][step] for step in losses) / len(losses)
        measure("diloco.loss_identical", same, equals=1, clock=Clock.NONE)
        final = {float.fromhex(report["loss"]) for report in running.reports("evaluation") if report["step"] == steps}
        assert final == {EXPECTED[key].final}

    return check


@pytest.fixture
def links(switches):
    """The bytes that a site's border switch has carried so far to either side, in both directions together."""
    if not switches.any:
        pytest.skip("no-switches: the inventory names no switches to read")

    def read():
        sums = {LONG_LINK: 0, INSIDE: 0}
        for _, count in switches._ports_of("border0"):
            if place := {"side": LONG_LINK, "down": INSIDE}.get(count.interface[:4]):
                sums[place] += count.received_bytes + count.sent_bytes
        return sums

    return read


@pytest.fixture
def carried(links):
    """The bytes that the long link has carried so far, in both directions together."""
    return lambda: links()[LONG_LINK]


@pytest.mark.needs(hosts=8)
def test_losses_are_those_of_one_process(train, identical):
    """Losses and evaluations of four ranks over the fabric are to the bit those of the training without a fabric."""
    running = train(2, 2, sited=4, steps=24, compute_s=0.02, **SMALL)
    running.wait("trained", DONE_S)
    identical(running, 24)


@pytest.mark.needs(hosts=8)
def test_restart_continues_to_the_bit(train, inject, shared, identical):
    """A worker is killed after a checkpoint: the job that is started again has the losses of an undisturbed one."""
    saved = {"checkpoints": str(shared), "checkpoint_every": 12, "compute_s": 0.1} | SMALL
    first = train(2, 2, sited=4, steps=48, **saved)
    first.wait("losses", DONE_S, count=2)
    victim = first.spec.members[3]
    with inject("process.kill", host=victim.host, job=first.spec.id, rank=victim.rank):
        (left,) = {report["site"] for report in first.until("left", 1, DONE_S)}
        assert left == 1
        first.stop()
        second = train(2, 2, sited=4, steps=48, **saved)
        second.wait("trained", DONE_S)
    (began,) = {report["step"] for report in second.reports("resumed")}
    assert began in (24, 36)
    identical(second, 48, since=began)


@pytest.mark.nightly
@pytest.mark.needs(hosts=8)
def test_bytes_over_the_long_link(train, links, measure, save):
    """At H = 100 and 4 bits, a step sends 1/400 of what data-parallel sends; a fragment's turn sends 1/8 of a model.

    Data-parallel sums gradients of 16 bits over all ranks, whose ring crosses the long link once in each direction.
    """

    def sent(steps, **parameters):
        before = links()
        running = train(2, 2, sited=4, steps=steps, **(DEEP | parameters))
        trained = running.wait("trained", DONE_S)
        running.stop()
        used = sum(each["computed_s"] / each["elapsed_s"] for each in trained) / len(trained)
        return {name: (count - before[name]) / steps for name, count in links().items()}, used

    by_link, _ = sent(4, method="data_parallel", gradients="bfloat16", inner_steps=4, compute_s=0.1, **WHOLE)
    streamed, used = sent(100, inner_steps=100, compute_s=0.1)
    methods = {"data-parallel": by_link, "Streaming DiLoCo": streamed}
    loads = (StepBytes(link, name, counts[link]) for link in by_link for name, counts in methods.items())
    save("link_bytes", LinkBytes(tuple(loads)))
    parallel, streaming = by_link[LONG_LINK], streamed[LONG_LINK]
    measure("diloco.bytes_per_step", parallel, unit="B", clock=Clock.NONE, method="data_parallel")
    measure("diloco.bytes_per_step", streaming, unit="B", clock=Clock.NONE, method="diloco")
    measure("diloco.bytes_ratio", parallel / streaming, at_least=400, clock=Clock.NONE)
    measure("diloco.utilisation", used, at_least=0.95)


@pytest.mark.nightly
@pytest.mark.needs(hosts=8)
def test_utilisation_is_that_of_the_model(train, inject, measure):
    """At the bandwidth of which the model says 95 % utilisation, ranks compute for 95 % of the time, to 3 points."""
    parameters = msgspec.convert(LARGE | SLOW | {"sites": [[0], [1]], "steps": 60}, Diloco)
    parts, plan = parameters.plan(list(backends.create(parameters.backend, parameters.model).layers))
    whole = {"sends": Granularity.STEP, "waits": Granularity.STEP}
    offsets = tuple(plan.turn(number).sent % plan.period for number in range(len(parts)))
    compute = Compute.equal(len(parts), parameters.compute_s)
    bits = [32 * part.size for part in parts]
    schedule = Schedule(plan.period, offsets, plan.overlap, **whole)
    (needed_bps,) = needed_bandwidth(compute, bits, schedule, [0.95], LONG_LINK_S)
    fraction = float(needed_bps) / LONG_LINK_BPS
    with inject("link.rate", at="border0/side0", direction="both", fraction=fraction, lease_s=120.0):
        trained = train(2, 2, sited=4, steps=parameters.steps, **(LARGE | SLOW)).wait("trained", DONE_S)
    used = sum(each["computed_s"] / each["elapsed_s"] for each in trained) / len(trained)
    measure("diloco.utilisation", used, bandwidth_bps=float(needed_bps))
    measure("diloco.utilisation_error", abs(used - 0.95), at_most=0.03)


@pytest.mark.nightly
@pytest.mark.needs(hosts=8)
def test_peak_over_the_long_link(train, carried, measure):
    """With fragments of 3 of 24 blocks, a turn sends at most 1/8 of what plain DiLoCo sends, with equal bits."""

    def peak(steps, **parameters):
        running = train(2, 2, sited=4, steps=steps, inner_steps=steps, quantisation="none", **(DEEP | parameters))
        readings = [carried()]
        # A turn takes milliseconds, and turns are two steps apart: two intervals together hold one turn at most.
        while not running.reports("trained"):
            time.sleep(parameters["compute_s"] * 0.9)
            readings.append(carried())
        running.stop()
        return max(after - before for before, after in zip(readings, readings[2:], strict=False))

    whole = peak(2, compute_s=4.0, **WHOLE)
    fragment = peak(18, compute_s=4.0)
    measure("diloco.peak", whole, unit="B", clock=Clock.NONE, method="whole model")
    measure("diloco.peak", fragment, unit="B", clock=Clock.NONE, method="fragments")
    measure("diloco.peak_ratio", whole / fragment, at_least=8, clock=Clock.NONE)


@pytest.mark.nightly
@pytest.mark.needs(hosts=8)
@pytest.mark.timeout(3 * 3600)  # of the lab's clock, as all there is
def test_no_false_alarm(train, cluster, measure):
    """Long silences and bursts between sites are normal: C4D says nothing of a healthy job in an hour."""
    duration_s = 3600
    running = train(2, 2, sited=4, steps=duration_s, compute_s=1.0, jitter=0.03, **SMALL)
    running.wait("trained", 2.0 * duration_s)
    time.sleep(3.0)  # the job's end is nothing to be reported either
    found = cluster.diagnoses(running.spec.id)
    measure("diloco.false_alarms", len(found), at_most=0, clock=Clock.NONE, duration_s=duration_s)
    assert not found, [f"{one.syndrome}: {one.component}; {one.evidence}" for one in found]
