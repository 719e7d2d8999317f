"""Jobs that lose one NIC of eight slow down little; without resilience they die."""

import statistics

import pytest

from c4bench.errors import UnhealthyError
from c4bench.workload.jobs import job, place

TRAINING = {"loop": "training", "pieces": 2, "piece_bytes": 4 << 20, "compute_s": 3e-3}
DECODING = {"loop": "decoding", "pieces": 16, "piece_bytes": 64 << 10, "compute_s": 0.5e-3}
# Long enough for the fault to come in the middle.
STEPS = {"training": 40, "decoding": 40}


@pytest.fixture
def eight_nics(rdma_hosts):
    """Hosts that lose an eighth of their bandwidth with a NIC."""
    if min(len(host.nics) for host in rdma_hosts) < 8:
        pytest.skip("few-nics: every host needs eight NICs; try --c4-topology rails-8")
    return rdma_hosts[:4]


@pytest.fixture
def steps(cluster, pytestconfig, eight_nics, inject, clocks):
    """Run a loop, lose a NIC in it, and give what every rank reports, on our clock, and when the fault was."""

    def run(loop, *, resilient):
        spec = job(
            f"steps-{loop['loop']}-{resilient}",
            "steps",
            place(eight_nics),
            seed=pytestconfig.option.c4_seed,
            steps=STEPS[loop["loop"]],
            resilient=resilient,
            **loop,
        )
        started = cluster.start(spec)
        cluster.results(started, "ready", 60.0)
        with inject("nic.down", host=eight_nics[1].name, nic=0) as fault:
            try:
                told = cluster.results(started, "steps", 300.0)
                hosts = [member.host for member in spec.members]
                return [ours(clocks, host, one) for host, one in zip(hosts, told, strict=True)], fault
            finally:
                cluster.stop(spec.id)

    return run


def ours(clocks, host, result):
    """A rank's result with its times on our clock, and how much these may be off."""
    spans = [(clocks.ours(host, began), clocks.ours(host, ended)) for began, ended in result["spans"]]
    return result | {"spans": spans, "clock_error_s": clocks.error_s(host)}


def parts(told, fault):
    """Durations of the steps before the fault and after the one that it hit, the slowest rank's of each."""
    spans = list(zip(*(result["spans"] for result in told), strict=True))
    took = [
        (max(e for _, e in each) - min(b for b, _ in each), min(b for b, _ in each), max(e for _, e in each))
        for each in spans
    ]
    before = [length for length, _, ended in took if ended < fault.onset_s]
    hit = next(number for number, (_, _, ended) in enumerate(took) if ended >= fault.onset_s)
    return before[2:], [length for length, *_ in took[hit + 2 :]], took[hit][0]


@pytest.mark.nightly
@pytest.mark.needs(hosts=4)
def test_training_through_a_lost_nic(steps, measure):
    """With compute and communication overlapped, a step takes at most 1 % longer; without resilience the job dies."""
    told, fault = steps(TRAINING, resilient=True)
    before, after, hit_s = parts(told, fault)
    assert [result["exact"] for result in told] == [STEPS["training"]] * len(told)
    step_s, computed_s = statistics.median(before), statistics.median(told[0]["computed_s"])
    measure("resilient.exposed_fraction", 1 - computed_s / step_s, at_most=0.07)
    labels = {"lost": "1 of 8", "plus_minus": either_s(told) / step_s}
    measure("resilient.training_overhead", statistics.median(after) / step_s - 1, at_most=0.01, **labels)
    labels = {"kind": "NIC down", "loop": "training", "plus_minus": either_s(told)}
    measure("resilient.pause_s", hit_s - step_s, unit="s", at_most=0.05, **labels)
    with pytest.raises(UnhealthyError, match=r"steps-training-False, rank \d"):
        steps(TRAINING, resilient=False)


@pytest.mark.nightly
@pytest.mark.needs(hosts=4)
def test_decoding_through_a_lost_nic(steps, measure):
    """The time between tokens grows by at most 3 %, median and 99th percentile; without resilience the job dies."""
    told, fault = steps(DECODING, resilient=True)
    before, after, hit_s = parts(told, fault)
    assert [result["exact"] for result in told] == [STEPS["decoding"]] * len(told)
    for name, percentile in (("p50", 50), ("p99", 99)):
        usual_s = percentile_of(before, percentile)
        worse = percentile_of(after, percentile) / usual_s - 1
        labels = {"percentile": name, "lost": "1 of 8", "plus_minus": either_s(told) / usual_s}
        measure("resilient.decode_overhead", worse, at_most=0.03, **labels)
    labels = {"kind": "NIC down", "loop": "decoding", "plus_minus": either_s(told)}
    measure("resilient.pause_s", hit_s - statistics.median(before), unit="s", at_most=0.05, **labels)
    with pytest.raises(UnhealthyError, match=r"steps-decoding-False, rank \d"):
        steps(DECODING, resilient=False)


def either_s(told):
    """How much the difference of two steps may be off, each from one host's clock to another's."""
    return 4 * max(result["clock_error_s"] for result in told)


def percentile_of(values, percent):
    """The value that so many percent do not exceed."""
    return sorted(values)[min(len(values) - 1, len(values) * percent // 100)]
