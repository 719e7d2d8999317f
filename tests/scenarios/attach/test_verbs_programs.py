"""Programs that spin on RDMA queues run unchanged in virtual time, at line rate, counted and on planned paths."""

import re
import subprocess
from pathlib import Path

import pytest

from c4bench.attach import build
from c4bench.attach.environment import NCCL_VERBS, PRELOAD
from c4bench.control.paths.switches import carried_bytes
from c4bench.lab.spec import CONTROL_SOCKET
from c4bench.units import payload_bound
from c4bench.verbs.addressing import label_for

BYTES, MESSAGES, WITHIN_S = 65536, 200, 60.0
AS_NCCL = Path(__file__).with_name("as_nccl.c")
BANDWIDTH = ("-x", "1", "-m", "4096", "-s", str(BYTES), "-n", str(MESSAGES), "--report_gbits")
PERFTEST = {
    "ib_write_bw": [],
    "ib_send_bw": [],
    "ib_read_bw": [],
    "ib_write_bw -b": ["-b"],
    "ib_write_bw -q 4": ["-q", "4"],
    "ib_write_bw old": ["--use_old_post_send"],
}

SHORT = ("ib_write_bw -q 4", "ib_send_bw")
CASES = [case if case in SHORT else pytest.param(case, marks=pytest.mark.nightly) for case in PERFTEST]


def gbits(said):
    """The average bandwidth that a program of perftest prints, bit/s."""
    (row,) = re.findall(rf"^ *{BYTES} +\d+ +[\d.]+ +([\d.]+)", said, re.MULTILINE)
    return float(row) * 1e9


@pytest.mark.needs(hosts=2)
@pytest.mark.parametrize("case", CASES)
def test_perftest_runs_at_line_rate(programs, installed, hosts, measure, case):
    """Within 1 % of the payload that a NIC can carry, each way; what is recorded is what it says it carried."""
    options = PERFTEST[case]
    ran = programs(installed(case.split()[0]), *BANDWIDTH, *options)
    ways, pairs = (2 if "-b" in options else 1), (4 if "-q" in options else 1)
    bound = ways * payload_bound(hosts[0].nics[0].rate_bps)
    ratio = gbits(ran.client) / bound
    measure("attach.goodput_ratio", ratio, at_least=0.99, program=case)
    assert ratio < 1.01
    assert [len(process) for process in ran.queue_pairs] == [pairs, pairs]
    carried = [pair for process in ran.queue_pairs for pair in process if pair.posted]
    assert len(carried) == ways * pairs
    for pair in carried:
        assert (pair.posted, pair.posted_bytes) == (MESSAGES, MESSAGES * BYTES)
        assert (pair.completed, pair.completed_bytes, pair.errors) == (MESSAGES, MESSAGES * BYTES, 0)
        assert pair.read_bytes == (MESSAGES * BYTES if "read" in case else 0)


@pytest.mark.needs(hosts=2)
@pytest.mark.parametrize("way", ["-N", *(pytest.param(way, marks=pytest.mark.nightly) for way in ("", "-e", "srq"))])
def test_pingpong(programs, installed, way):
    """As many bytes are recorded as it counts: by verbs, by ibv_wr_*, by events, with a shared receive queue."""
    tool, *options = ("ibv_srq_pingpong", "-q", "1") if way == "srq" else ("ibv_rc_pingpong", *way.split())
    ran = programs(installed(tool), "-g", "1", "-m", "4096", "-s", str(BYTES), "-n", str(MESSAGES), *options)
    said = int(re.search(r"^(\d+) bytes in ", ran.client, re.MULTILINE)[1])
    (near,), (far,) = ran.queue_pairs
    assert near.completed_bytes + far.completed_bytes == said
    assert near.arrived_bytes + far.arrived_bytes == said


@pytest.mark.needs(hosts=2)
def test_latency(programs, installed, measure):
    """A ping-pong of 2 bytes takes a microsecond and not the length of a sleep."""
    ran = programs(installed("ib_send_lat"), "-x", "1", "-s", "2", "-n", str(MESSAGES))
    typical_us = float(re.search(r"^ *2 +\d+ +[\d.]+ +[\d.]+ +([\d.]+)", ran.client, re.MULTILINE)[1])
    measure("attach.latency_s", typical_us * 1e-6, unit="s", at_most=2e-6)


@pytest.mark.needs(hosts=2)
def test_the_agent_chooses_the_path(programs, installed, hosts, atlas, switches, measure):
    """With a flow label of the agent's, all bytes take the path of that label by the switches' counters."""
    near, far = hosts[-1].nics[0], hosts[0].nics[0]
    right = 0
    for path in (paths := atlas.paths(near.name, far.name)):
        before = switches.ports()
        with programs.agent({"label": label_for(path.source_port)}):
            ran = programs(installed("ib_write_bw"), *BANDWIDTH)
        carried = carried_bytes(before, switches.ports())
        full = {hop for hop, count in carried.items() if count > MESSAGES * BYTES}
        right += full == {hop for hop in path.hops if hop in carried}
        assert {pair.label for process in ran.queue_pairs for pair in process} == {label_for(path.source_port)}
    measure("attach.as_planned_fraction", right / len(paths), equals=1, paths=len(paths))


@pytest.mark.needs(hosts=2)
def test_patience_is_the_agents(programs, installed, hosts):
    """Timeout and retries are those of the agent's policy; what the program asked for is recorded beside them."""
    with programs.agent({"timeout": 12, "retries": 3}):
        ran = programs(installed("ib_write_bw"), *BANDWIDTH)
    (sender,) = [pair for process in ran.queue_pairs for pair in process if pair.posted]
    assert (sender.asked_timeout, sender.asked_retries) == (14, 7)
    assert (sender.timeout, sender.retries) == (12, 3)
    addresses = {nic.address for nic in (hosts[0].nics[0], hosts[-1].nics[0])}
    assert [{asked["source"], asked["destination"]} for asked in programs.questions] == [addresses] * 2


@pytest.mark.needs(hosts=2)
def test_an_agent_that_does_not_answer_delays_a_program_once(programs, installed, hosts):
    """Without an answer a program goes on after half a second, on its own path, and one line says why."""
    with programs.agent(None):
        ran = programs(installed("ib_write_bw"), *BANDWIDTH, "-q", "4")
    assert ran.client.count("c4bench attach: the agent at ") == 1
    assert gbits(ran.client) > 0.99 * payload_bound(hosts[0].nics[0].rate_bps)


@pytest.mark.needs(hosts=2)
@pytest.mark.nightly
@pytest.mark.usefixtures("atlas")
@pytest.mark.parametrize("form", ["preloaded", "in place"])
def test_a_program_that_looks_verbs_up_itself(program, cluster, rdma_hosts, tmp_path, measure, form):
    """As NCCL does it: at line rate, followed, and on planned paths, by either form of the library."""
    if not Path(CONTROL_SOCKET).exists():
        pytest.skip(
            "unsupported: the form in libibverbs' place is where set-up has built it, in a lab as on its machine"
        )
    subprocess.run(["gcc", "-std=c11", "-D_DEFAULT_SOURCE", "-O2", "-o", tmp_path / "as_nccl", AS_NCCL], check=True)
    ends = rdma_hosts[0], rdma_hosts[-1]
    path = program.copy(tmp_path / "as_nccl", ends)
    words = [path, "{device}", "{gid}", str(BYTES), str(MESSAGES)]
    library = {PRELOAD: ":".join(map(str, build.libraries(verbs=False))), NCCL_VERBS: str(build.in_place())}
    environment = library if form == "in place" else {}
    ran = program([*words, "{server}"], server=words, hosts=ends, environment=environment)
    assert ran.wait(WITHIN_S) == 0
    assert len(cluster.placed(ran.job)) == 2
    rate_bps = 1e9 * float(re.search(r"at ([\d.]+) Gbit/s", ran.processes[1].output())[1])
    ratio = rate_bps / payload_bound(ends[1].nics[0].rate_bps)
    measure("attach.goodput_ratio", ratio, at_least=0.99, program="as_nccl", form=form)
