"""Faults under programs that we did not write: C4D names them as in our own jobs, as far as their records tell."""

import math
import subprocess
import time
from collections.abc import Mapping
from contextlib import contextmanager
from pathlib import Path
from signal import SIGKILL, SIGSTOP, SIGUSR1, SIGUSR2
from types import MappingProxyType
from typing import NamedTuple

import msgspec
import nccl_rank
import pytest

from c4bench.errors import InconclusiveError
from c4bench.model.diagnosis import Component
from c4bench.model.measurement import Clock

ALL_REDUCE = Path(__file__).with_name("all_reduce.c")
UCX = {
    "OMPI_MCA_pml": "ucx",
    "UCX_TLS": "rc_v,self",
    "UCX_IB_GID_INDEX": "{gid}",
    "UCX_UD_VERBS_ETH_DGID_CHECK": "n",
}
BACK_S, FOLLOWED_S, LEARN_S, PATIENCE_S, AFTERTHOUGHT_S = 60.0, 60.0, 4.5, 6.0, 0.3
OPERATIONS, HEALTHY_S = 500, 60.0
COUNT, ROUNDS, COMPUTE_US, RANKS = 65_536, 1_000_000, 20_000, 4


class Trial(NamedTuple):
    """A fault, where it goes, and what may be said of it: how soon the alarm has to come (s), and which syndromes."""

    fault: str
    where: str
    syndromes: tuple[str, ...]
    alarm_s: float = 3.0
    parameters: Mapping = MappingProxyType({})


HANG, SLOW = ("communication_hang",), ("communication_slow",)
RANK_HANG, RANK_SLOW = ("non_communication_hang",), ("non_communication_slow",)
QUARTER = {"fraction": 0.25}
# A program's last packet, when it is lost, comes again after the program's own timeout: of NCCL that is 4 s, a hang.
LOSS = SLOW + HANG
TRIALS = {
    "nic-slow-tx": Trial("nic.rate", "nic", SLOW, parameters={"direction": "tx", **QUARTER}),
    "nic-slow-rx": Trial("nic.rate", "nic", SLOW, parameters={"direction": "rx", **QUARTER}),
    "nic-down": Trial("nic.down", "nic", HANG),
    "link-slow": Trial("link.rate", "link", SLOW, parameters={"direction": "tx", "fraction": 0.1}),
    "loss": Trial("link.loss", "link", LOSS, parameters={"direction": "tx", "probability": 0.02}),
    "black-hole": Trial("link.blackhole", "link", HANG),
    "acks-lost": Trial("link.acks_lost", "link", HANG),
    "switch-down": Trial("switch.down", "switch", HANG),
    "host-crashed": Trial("host.crash", "host", HANG),
    "killed": Trial("SIGKILL", "rank", RANK_HANG, 2.0),
    "stopped": Trial("SIGSTOP", "rank", RANK_HANG),
    "slow": Trial("SIGUSR1", "rank", RANK_SLOW),
    "uneven": Trial("SIGUSR2", "rank", RANK_SLOW, 12.0),
}
SIGNALS = {"SIGKILL": SIGKILL, "SIGSTOP": SIGSTOP, "SIGUSR1": SIGUSR1, "SIGUSR2": SIGUSR2}
TOLD = {"SIGUSR1", "SIGUSR2"}  # what a program has to know of


class Running(NamedTuple):
    """A program that is followed: its job, its processes' program by name, its ranks' hosts, and one that receives."""

    job: str
    program: object
    name: str
    hosts: list
    receiver: object


@pytest.fixture
def follow(cluster):
    """Wait until all processes of a job are followed and what is normal has been learnt."""

    def until(job, ranks):
        jobs, deadline_s = cluster.parts.registry.jobs, time.monotonic() + FOLLOWED_S
        while job not in jobs() or len(jobs()[job].spec.members) < ranks:
            assert time.monotonic() < deadline_s, f"{job} is not followed"
            time.sleep(0.05)
        time.sleep(LEARN_S)

    return until


@pytest.fixture
def mpi(program, rdma_hosts, tmp_path, follow):
    """All-reduces of Open MPI, one rank on every other host."""

    def start(job):
        hosts = rdma_hosts[:: max(1, len(rdma_hosts) // RANKS)][:RANKS]
        if not program.has("mpicc.openmpi", hosts):
            pytest.skip("no-mpicc.openmpi: install libopenmpi-dev")
        subprocess.run(["mpicc.openmpi", "-O2", "-o", tmp_path / "all_reduce", ALL_REDUCE], check=True)
        words = [program.copy(tmp_path / "all_reduce", hosts), str(COUNT), str(ROUNDS), str(COMPUTE_US)]
        ran = program(["mpirun.openmpi", "-np", str(RANKS), *words], hosts=hosts, environment=UCX, job=job)
        follow(job, RANKS)
        return Running(job, ran, "all_reduce", hosts, hosts[1])

    return start


@pytest.fixture
def perftest(program, rdma_hosts, follow):
    """ib_write_bw from the last host to the first."""

    def start(job):
        hosts = [rdma_hosts[0], rdma_hosts[-1]]
        if not program.has("ib_write_bw", hosts):
            pytest.skip("no-ib_write_bw: install perftest")
        words = "ib_write_bw -d {device} -x {gid} -m 4096 -s 16384 -Q 100 -n 50000000 --report_gbits"
        ran = program(words, hosts=hosts, job=job)
        follow(job, 2)
        return Running(job, ran, "ib_write_bw", hosts, hosts[0])

    return start


@pytest.fixture
def nccl(program, rdma_hosts, inventory, follow):
    """NCCL's calls and queue pairs, as its profiler plugin sees them, one rank on every other host."""

    def start(job):
        hosts = rdma_hosts[:: max(1, len(rdma_hosts) // RANKS)][:RANKS]
        path = program.copy(Path(nccl_rank.__file__), hosts)
        config = nccl_rank.Config(
            -1,
            RANKS,
            "",
            hosts=tuple(host.address for host in hosts),
            device="DEVICE",
            address="ADDRESS",
            count=COUNT,
            compute_s=COMPUTE_US / 1e6,
            iterations=ROUNDS,
        )
        text = msgspec.json.encode(config).decode().replace('"rank":-1', '"rank":RANK')
        fill = 'config=$(echo "$1" | sed "s/RANK/$RANK/; s/DEVICE/$2/; s/ADDRESS/$3/")\n'
        # It sleeps while it waits, so nothing has to let a lab's time move.
        fill += 'LD_PRELOAD=$(echo "$LD_PRELOAD" | tr : "\\n" | grep -v /lab- | paste -sd :) exec "$4" "$5" "$config"'
        python = inventory.access[hosts[0].name].python
        ran = program(["sh", "-c", fill, "sh", text, "{device}", "{address}", python, path], hosts=hosts, job=job)
        follow(job, RANKS)
        return Running(job, ran, Path(python).resolve().name, hosts, hosts[1])

    return start


@pytest.fixture
def break_it(inject, cluster, ports):
    """Bring about a trial's fault under a program; yields when it began, and whether a component is what has it."""

    def crossed(job, sender):
        """A port towards another switch that the sender's data leave by."""
        newest = next(window for window in reversed(cluster.windows(job)) if window.host == sender.name)
        used = {(conn.source, conn.source_port) for conn in newest.conns}
        placed = cluster.placed(job).items()
        hops = {hop for flow, path in placed if (flow.source, path.source_port) in used for hop in path.hops}
        across = {ports.leading.get(hop) for hop in hops}.intersection(ports.across)
        if not across:
            raise InconclusiveError(f"{job}: the queue pairs of {sender.name} are not on planned paths")
        return min(across)

    @contextmanager
    def apply(trial, ran):
        receiving = trial.parameters.get("direction") == "rx" or trial.fault == "link.acks_lost"
        victim = ran.receiver if receiving else ran.hosts[1]
        if trial.where == "rank":
            target = Component("rank", f"{ran.job}:1")
            ran.program.signal(SIGNALS[trial.fault], program=ran.name, host=victim.name)
            yield time.time(), lambda found: found == target
            return
        at = {
            "nic": lambda: f"{victim.name}/0",
            "host": lambda: victim.name,
            "link": lambda: crossed(ran.job, victim),
            "switch": lambda: crossed(ran.job, victim).partition("/")[0],
        }[trial.where]()
        lease_s = 6.0 if trial.where == "host" else 20.0
        with inject(trial.fault, at=at, lease_s=lease_s, **trial.parameters) as fault:
            names = ports.addresses.get(at, frozenset()) | {fault.target.name}
            yield fault.observed_s, lambda found: found.name in names and found.side in {fault.target.side, ""}

    return apply


@pytest.fixture
def healthy(request, cluster, measure, run_directory):
    """Let a program work for 500 collectives, or as many tens of messages: nothing may be found."""

    def watch(program_of):
        ran = request.getfixturevalue(program_of)(f"{program_of}-healthy")
        done, deadline_s = 0, time.monotonic() + HEALTHY_S
        while done < OPERATIONS and time.monotonic() < deadline_s:
            time.sleep(1.0)
            newest = cluster.windows(ran.job)[-len(ran.hosts) :]
            calls = [op.seq + 1 for window in newest for op in window.ops]
            done = max([*calls, *(conn.messages // 10 for window in newest for conn in window.conns if not calls)])
        run_directory.save_telemetry(ran.job, cluster.recording(ran.job))
        measure("attach.healthy_operations", done, at_least=OPERATIONS, clock=Clock.NONE, program=program_of)
        found = len(cluster.diagnoses(ran.job))
        measure("attach.false_alarms", found, at_most=0, clock=Clock.NONE, program=program_of)

    return watch


@pytest.fixture
def faulty(request, break_it, cluster, rdma_hosts, measure, run_directory, replayed):
    """Break something under a program: it has to be named, as the trial says."""

    def try_it(program_of, name):
        trial = TRIALS[name]
        cluster.wait_hosts([host.name for host in rdma_hosts], BACK_S)  # whatever the trial before has broken
        cluster.wait_links(BACK_S)
        ran = request.getfixturevalue(program_of)(f"{program_of}-{name}")
        assert cluster.diagnoses(ran.job) == []
        try:
            with break_it(trial, ran) as (onset_s, is_target):
                cluster.wait_diagnosis(ran.job, max(PATIENCE_S, trial.alarm_s), onset_s)
                time.sleep(AFTERTHOUGHT_S)
                found, again = cluster.diagnoses(ran.job), replayed(ran.job)
        finally:
            run_directory.save_telemetry(ran.job, cluster.recording(ran.job))
        alternatives = [each for one in found for each in (one.component, *one.alternatives)]
        healthy = [one.component for one in found if not one.alternatives and not is_target(one.component)]
        right = any(map(is_target, alternatives)) and not healthy
        labels = {"program": program_of, "fault": name}
        measure("attach.correct_fraction", float(right), equals=1, clock=Clock.NONE, **labels)
        alarm_s = min((one.alarmed_s - onset_s for one in found), default=math.inf)
        measure("attach.alarm_s", alarm_s, unit="s", at_most=trial.alarm_s, **labels)
        said = [(str(one.syndrome), str(one.component), [*map(str, one.alternatives)]) for one in found]
        assert right, said
        assert any(one.syndrome in trial.syndromes for one in found), said
        assert again, "the recording says something else"

    return try_it


@pytest.mark.nightly
@pytest.mark.needs(hosts=4)
@pytest.mark.parametrize("program_of", ["mpi", "nccl"])
def test_healthy_collectives_raise_no_alarm(healthy, program_of):
    """500 collectives of a program that we did not write."""
    healthy(program_of)


@pytest.mark.nightly
@pytest.mark.needs(hosts=4)
def test_a_healthy_perftest_raises_no_alarm(healthy):
    """5,000 messages of perftest."""
    healthy("perftest")


@pytest.mark.nightly
@pytest.mark.needs(hosts=4)
@pytest.mark.usefixtures("atlas")
@pytest.mark.parametrize("program_of", ["mpi", "nccl"])
@pytest.mark.parametrize("name", TRIALS)
def test_a_fault_under_collectives_is_named(faulty, program_of, name):
    """The faulty component is named in time, alone or among those that the program's traffic cannot tell from it."""
    faulty(program_of, name)


@pytest.mark.nightly
@pytest.mark.needs(hosts=4)
@pytest.mark.usefixtures("atlas")
@pytest.mark.parametrize("name", TRIALS)
def test_a_fault_under_perftest_is_named(faulty, name):
    """The same of a program that always sends."""
    if TRIALS[name].fault in TOLD:
        pytest.skip(f"unsupported: {name}: ib_write_bw computes nothing, so neither end of it computes more slowly")
    faulty("perftest", name)


@pytest.mark.nightly
@pytest.mark.needs(hosts=4)
@pytest.mark.parametrize("program_of", ["mpi", "nccl", "perftest"])
def test_a_clock_that_is_set_raises_no_alarm(request, program_of, inject, cluster, rdma_hosts, measure):
    """A host's clock jumps while a program runs on it: what the program uses is well, and nothing is found."""
    step = inject("host.clock_step", at=rdma_hosts[0].name, offset_s=-5.0)
    ran = request.getfixturevalue(program_of)(f"{program_of}-clock-step")
    with step:
        time.sleep(PATIENCE_S)
        found = len(cluster.diagnoses(ran.job))
    measure("attach.false_alarms", found, at_most=0, clock=Clock.NONE, program=program_of, fault="clock-step")
