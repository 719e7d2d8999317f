"""Faults of ranks: those that pass on a job that runs on, those that end it on a process made for that."""

import time

import pytest

from c4bench import remote
from c4bench.model.measurement import Clock
from c4bench.workload.jobs import training_job

pytestmark = pytest.mark.needs("disruptive", "root", "agents")
STABLE_S = 1.5
LEASE_S = 30.0
PASSING = {
    "process.slow": {"factor": 3},
    "process.stall": {"factor": 10, "period_s": 1.0, "duty": 0.3},
    "process.uneven": {"factor": 3, "period_s": 1.0},
    "process.stop": {},
    "process.hang": {},
    "gpu.clock": {"clock_mhz": 600},
    "gpu.power": {"limit_w": 100},
    "gpu.hang": {},
}
# What a rank is to the injector: a process that writes its telemetry where ranks do, and obeys its controls.
RANK = """
import select, sys
from c4bench.collective.recorder import Recorder
from c4bench.model.agent import AgentConfig
from c4bench.workload.controls import Controls
places = AgentConfig("", "", "")
places.ring("doomed", 0).parent.mkdir(parents=True, exist_ok=True)
Recorder(places.ring("doomed", 0), "doomed", 0)
controls = Controls.create(places.controls("doomed", 0))
print("ready", flush=True)
while not select.select([sys.stdin], [], [], 0.01)[0]:
    controls.compute(0.0)
"""


@pytest.fixture
def two_ranks(cluster, rdma_hosts, pytestconfig):
    """A training job on two hosts."""
    running = cluster.start(training_job("two-ranks", rdma_hosts[:2], seed=pytestconfig.option.c4_seed))
    cluster.results(running, "ready", 60.0)
    yield running.spec
    cluster.stop(running.spec.id)


@pytest.mark.needs(hosts=2)
def test_faults_that_pass(two_ranks, injector, place, measure, healed):
    """A rank that is slow, stalls, has uneven work, stands still or hangs is seen to, and is itself again."""
    time.sleep(STABLE_S)
    victim = two_ranks.members[0]
    target = place(f"{two_ranks.id}:{victim.rank}@{victim.host}")
    gpu = place(f"{victim.host}/gpu0")
    for name, parameters in PASSING.items():
        where = gpu if name.startswith("gpu") else target
        with injector.apply_at(name, where, parameters, lease_s=LEASE_S, witness_s=1.0) as fault:
            measure("faults.witnessed_fraction", float(fault.witness.seen), equals=1, clock=Clock.NONE, fault=name)
            measure("faults.onset_error_s", fault.onset_bound_s, unit="s", at_most=0.010, fault=name)
        # A rank in the middle of a long step has yet to show that the next one is short again.
        well = healed()["recovered"] is not False
        measure("faults.healed_fraction", float(well), equals=1, clock=Clock.NONE, fault=name)


@pytest.fixture
def doomed(inventory, fault_hosts):
    """A rank on the first host that nobody will miss."""
    host = fault_hosts[0].name
    with remote.connect(host, inventory.access[host]) as connection:
        session = connection.start([inventory.access[host].python, "-c", RANK])
        try:
            assert session.read_line(30.0) == "ready"
            yield f"doomed:0@{host}"
        finally:
            session.close()
            connection.run(["rm", "-rf", "/dev/shm/c4bench/doomed"], timeout_s=30.0)


@pytest.mark.parametrize("name", ["process.kill", "process.segfault", "process.memory", "process.exit", "gpu.ecc"])
def test_faults_that_kill(name, doomed, injector, place, on, fault_hosts, measure):
    """A rank that is killed or exits is seen to have ended, and nothing else of the fault stays on the host."""
    where = place(f"{fault_hosts[0].name}/gpu0" if name.startswith("gpu") else doomed)
    with injector.apply_at(name, where, lease_s=LEASE_S) as fault:
        measure("faults.witnessed_fraction", float(fault.witness.seen), equals=1, clock=Clock.NONE, fault=name)
        measure("faults.onset_error_s", fault.onset_bound_s, unit="s", at_most=0.010, fault=name)
    groups = on(fault_hosts[0].name, "ls -d /sys/fs/cgroup/c4bench-* 2>/dev/null || true")
    measure("faults.residue", len(groups.split()), at_most=0, clock=Clock.NONE, fault=name)
    assert groups == ""
