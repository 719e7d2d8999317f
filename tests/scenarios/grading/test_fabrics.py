"""C4D reports nothing of jobs without a fault, from their first second on, on fabrics that nobody drew.

`make fabrics` draws them; any other will do: `--c4-topology FILE.yml`.
"""

import msgspec
import pytest

from c4bench.model.step import RankGroup
from c4bench.workload.jobs import STEPS, job, place, traffic_job

# Eight seconds of a job.
ITERATIONS = 50


@pytest.fixture
def silent(unblamed, as_at_first, rdma_hosts, pytestconfig):
    """A job of this traffic with these paths runs to its end; nothing may be said of it."""

    def check(kind, paths, state):
        name, seed = f"{state}-{kind}", pytestconfig.option.c4_seed
        options = {"steps": ITERATIONS, "jitter": 0.03, "unrest": kind == "unrest", "paths": paths}
        if kind == "groups":
            watched = groups_job(name, rdma_hosts, seed, **options)
        else:
            watched = traffic_job(name, "ring" if kind == "unrest" else kind, rdma_hosts, seed=seed, **options)
        as_at_first([host.name for host in rdma_hosts])
        unblamed(watched, [], ITERATIONS, traffic=kind, paths=paths, state=state)

    return check


def groups_job(name, hosts, seed, **options):
    """Megatron's groups over any number of hosts, two ranks on each; of an odd number there is no pipeline."""
    placed = place(hosts)
    placed += [*placed[1:], placed[0]]
    even = len(hosts) % 2 == 0
    groups = {
        "tensor": RankGroup("tensor", 2),
        "data": RankGroup("data", len(hosts) // 2 if even else len(hosts), 2),
        "pipeline": RankGroup("pipeline", 2, len(hosts)) if even else None,
    }
    cut = [(op, groups[op.group.name]) for op in STEPS["groups"]]
    step = [msgspec.structs.replace(op, group=group) for op, group in cut if group]
    return job(name, "groups", placed, seed=seed, step=step, **options)


# An unrestful ring pauses, stalls and computes unevenly.
KINDS = ("ring", "all_to_all", "groups", "unrest")
# What every run tries: flows of these meet most.
SLICE = ("all_to_all", "groups")


@pytest.mark.nightly
@pytest.mark.needs(hosts=6)
@pytest.mark.parametrize("kind", KINDS)
def test_healthy_jobs_on_ecmp(kind, silent):
    """Hashed paths that meet on a thin link are no finding, when nobody has looked at the paths."""
    silent(kind, "ecmp", "unknown")


@pytest.mark.needs(hosts=6)
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[] if kind in SLICE else pytest.mark.nightly) for kind in KINDS]
)
def test_healthy_jobs_on_known_paths(kind, silent, atlas):  # noqa: ARG001 (paths that are looked at)
    """Nor are they when the paths are known."""
    silent(kind, "ecmp", "known")


@pytest.mark.nightly
@pytest.mark.needs(hosts=6)
@pytest.mark.parametrize("kind", KINDS)
def test_healthy_jobs_on_planned_paths(kind, silent, atlas):  # noqa: ARG001 (planned paths)
    """Planned paths over unequal links are no finding."""
    silent(kind, "planned", "planned")
