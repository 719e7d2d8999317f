"""Training and serving of named models lose one NIC of eight and slow down little; without resilience they die."""

import random
import statistics
from itertools import pairwise

import pytest

from c4bench.errors import UnhealthyError
from c4bench.workload.jobs import gpu_job

STEPS, GPUS = 24, 8
RESAMPLES = 1000
# Models, and what their jobs have besides ranks. A tensor group, where there is one, is a host's ranks. Short steps are
# more, for the fault comes after a tenth of a second.
MODELS = [
    ("gpt-22b", {"micro_batches": 4, "pieces": 2, "steps": 40}),
    ("gpt-22b", {"micro_batches": 16, "pieces": 2, "steps": 20}),
    ("gpt-175b", {"micro_batches": 4, "pieces": 2, "scale": {"time": 0.003}}),
    ("llama-7b", {"micro_batches": 1, "sequences": 8, "sequence": 4096}),
    ("mixtral-8x7b", {"micro_batches": 1, "sequences": 4, "sequence": 4096}),
]
STAGE_ON_EACH_HOST, EXPERTS = ("gpt-175b",), {"mixtral-8x7b": 8}
TENSOR = ("gpt-22b", "gpt-175b")
SERVED = {
    "model": "llama-7b",
    "requests": 24,
    "arrivals_s": 20.0,
    "prompt": 1024,
    "answer": 16,
    "pieces": 8,
    "scale": {"time": 1.0},
}


@pytest.fixture
def gpu_hosts(rdma_hosts):
    """Two hosts whose eight GPUs have a NIC each; such a host loses an eighth of its bandwidth with a NIC."""
    if min(min(len(host.gpus), len(host.nics)) for host in rdma_hosts) < GPUS:
        pytest.skip(f"few-gpus: every host needs {GPUS} GPUs and NICs; try --c4-topology gpu-2x8")
    return rdma_hosts[:2]


@pytest.fixture
def run(cluster, gpu_hosts, inject):
    """Run a job to its last results, of a kind, and give them; `lose` a NIC once it is ready, or none."""

    def begin(spec, kind, *, lose):
        started = cluster.start(spec)
        try:
            cluster.results(started, "ready", 60.0)
            if not lose:
                return cluster.results(started, kind, 300.0), None
            with inject("nic.down", host=gpu_hosts[1].name, nic=0) as fault:
                return cluster.results(started, kind, 300.0), fault
        finally:
            cluster.stop(spec.id)

    return begin


def training(name, batches, hosts, seed, **options):
    """A job that trains a model on all GPUs of these hosts."""
    spec = gpu_job(f"{name}-{len(options)}", "pretraining", hosts, GPUS, seed=seed)
    tensor = GPUS if name in TENSOR else 1
    pipeline = len(hosts) if name in STAGE_ON_EACH_HOST else 1
    data = len(spec.members) // tensor // pipeline
    shared = {"tensor": tensor, "pipeline": pipeline, "data": data, "expert": min(data, EXPERTS.get(name, 1))}
    spec.parameters.update(model=name, parallelism=shared, **{"steps": STEPS} | batches | options)
    return spec


def steps_of(clocks, spec, told):
    """Each step but the first, from the end of the one before on the last rank to its own, on our clock.

    Ranks do not wait for each other at the end of a step, so some begin the next one sooner.
    """
    hosts = [member.host for member in spec.members]
    spans = zip(*(result["spans"] for result in told), strict=True)
    ends = [max(clocks.ours(host, ended) for host, (_, ended) in zip(hosts, each, strict=True)) for each in spans]
    return list(pairwise(ends))


@pytest.mark.nightly
@pytest.mark.needs(hosts=2)
@pytest.mark.parametrize(("name", "batches"), MODELS)
def test_training_through_a_lost_nic(run, name, batches, gpu_hosts, clocks, pytestconfig, measure):
    """A step takes at most 1 % longer without one of eight NICs, and none is wrong; without resilience the job dies."""
    seed = pytestconfig.option.c4_seed
    spec = training(name, batches, gpu_hosts, seed)
    told, fault = run(spec, "steps", lose=True)
    assert [result["exact"] for result in told] == [spec.parameters["steps"]] * len(told)
    steps = steps_of(clocks, spec, told)
    before = [ended - began for began, ended in steps if ended < fault.onset_s][1:]
    hit = next(number for number, (_, ended) in enumerate(steps) if ended >= fault.onset_s)
    after = [ended - began for began, ended in steps[hit + 2 :]]
    step_s, computed_s = statistics.median(before), statistics.median(told[0]["computed_s"])
    error_s = 4 * clocks.error_s(*(member.host for member in spec.members))
    labels = {"model": name, "ranks": len(spec.members), "micro_batches": batches["micro_batches"]}
    measure("resilient.exposed_fraction", 1 - computed_s / step_s, **labels)
    overhead = statistics.median(after) / step_s - 1
    measure("resilient.step_overhead", overhead, at_most=0.01, lost="1 of 8", plus_minus=error_s / step_s, **labels)
    began, ended = steps[hit]
    labels = {"kind": "NIC down", "loop": name, "plus_minus": error_s}
    measure("resilient.pause_s", ended - began - step_s, unit="s", at_most=0.05, **labels)
    with pytest.raises(UnhealthyError, match=r", rank \d"):
        run(training(name, batches, gpu_hosts, seed, resilient=False), "steps", lose=True)


@pytest.mark.nightly
@pytest.mark.needs(hosts=2)
def test_serving_through_a_lost_nic(run, gpu_hosts, clocks, pytestconfig, measure):
    """Median and 99th percentile of waits for tokens grow by at most 3 %, with the request that is hit."""
    figures = {}
    for lose in (False, True):
        spec = gpu_job(f"serving-{lose}", "serving", gpu_hosts, GPUS, seed=pytestconfig.option.c4_seed, **SERVED)
        told, _ = run(spec, "served", lose=lose)
        assert all(result["exact"] for result in told)
        figures[lose] = waits(clocks, spec, told)
    for what, percents in (("first token", (50, 99)), ("second token", (50,)), ("between tokens", (50, 99))):
        for percent in percents:
            usual, hit = figures[False][what], figures[True][what]
            labels = {"wait": what, "lost": "1 of 8", "usual_s": percentile(usual, percent), "requests": len(usual)}
            labels |= dict(zip(("low", "high"), interval(usual, hit, percent), strict=True))
            measure(f"serving.p{percent}_overhead", growth(usual, hit, percent), at_most=0.03, **labels)


def waits(clocks, spec, told):
    """How long each request waited: for its first token, for the second one, and for each of those after the first."""
    half = len(told) // 2
    prefill, decode = spec.members[0].host, spec.members[half].host
    arrived = [clocks.ours(prefill, arrival) for arrival, _ in told[0]["times"]]
    first = [max(result["times"][number][1] for result in told[:half]) for number in range(len(arrived))]
    first = [clocks.ours(prefill, moment) for moment in first]
    further = [[clocks.ours(decode, moment) for moment in times] for times in told[half]["times"]]
    between = [
        [later - earlier for earlier, later in pairwise((began, *times))]
        for began, times in zip(first, further, strict=True)
    ]
    until_first = [[moment - arrival] for arrival, moment in zip(arrived, first, strict=True)]
    return {"first token": until_first, "second token": [each[:1] for each in between], "between tokens": between}


def growth(usual, hit, percent):
    """How much a percentile of all requests' waits grows."""
    return percentile(hit, percent) / percentile(usual, percent) - 1


def interval(usual, hit, percent):
    """The 95 % interval of that growth: requests are drawn again, each in both runs, which have the same arrivals."""
    chance, numbers = random.Random(1), range(len(usual))
    draws = [chance.choices(numbers, k=len(numbers)) for _ in range(RESAMPLES)]
    grown = sorted(growth([usual[n] for n in draw], [hit[n] for n in draw], percent) for draw in draws)
    return round(grown[RESAMPLES // 40], 4), round(grown[-RESAMPLES // 40], 4)


def percentile(waits_s, percent):
    """The wait that so many percent of all requests' do not exceed."""
    values = sorted(wait_s for each in waits_s for wait_s in each)
    return values[min(len(values) - 1, len(values) * percent // 100)]
