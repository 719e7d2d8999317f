"""Programs go on at the other NIC when theirs fails: each message once, or a loud error.

pytest --hosts softroce --c4-topology tests/scenarios/attach/two-nics.yml -m "nightly or not nightly" FILE
"""

import json
import random
import re
import subprocess
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from c4bench import remote
from c4bench.attach import build
from c4bench.attach.environment import PRELOAD, failover_variables
from c4bench.control.paths.switches import carried_bytes
from c4bench.units import payload_bound

pytestmark = [pytest.mark.nightly, pytest.mark.needs(hosts=2)]
EXACT = Path(__file__).with_name("exact.c")
MODES = ("send", "write", "read")
BYTES, MESSAGES, WITHIN_S = 16384, 10_000, 20.0
# Into the program's run, which takes about 1.3 s; a fault takes effect some tenths of a second after it is asked for.
EARLIEST_S, LATEST_S = 0.0, 0.4


# What a program may lose, and how that is noticed. A second loss follows a first that has healed, at the other NIC.
LOSSES = {
    "down": "event",
    "port": "event",
    "flap": "event",
    "second": "event",
    "both": "probes",
    "tx": "probes",
    "rx": "probes",
}
SECOND_S = 0.3
PAUSE_AT_MOST_S = {"event": 0.05, "probes": 0.15}
# In MB/s, which has more digits. A fault comes once so many of its 94 MiB a queue pair have been carried.
PERFTEST = "-d {device} -x {gid} -m 4096 -s 65536 -n 1500"
STARTED_BYTES, SOON_S = 1 << 20, 0.2
TRIALS, AT_ONCE = 200, 20
HEALED_S = 0.2  # after a fault, until its NIC can be used again
# UCX on RDMA devices, as in test_as_they_are.py.
UCX = {
    "OMPI_MCA_pml": "ucx",
    "UCX_TLS": "rc_v,self",
    "UCX_IB_GID_INDEX": "{gid}",
    "UCX_UD_VERBS_ETH_DGID_CHECK": "n",
    "MPIR_CVAR_NOLOCAL": "1",
}


class Ended(NamedTuple):
    """How the two ends of a program ended: their codes and output, and its longest pause (s)."""

    codes: tuple[int, ...]
    printed: str

    @property
    def pause_s(self) -> float:
        return max(map(float, re.findall(r"longest pause ([\d.]+) s", self.printed)))


@pytest.fixture
def ends(rdma_hosts):
    """Two hosts with two NICs each."""
    several = [host for host in rdma_hosts if len(host.nics) > 1]
    if len(several) < 2:
        pytest.skip("one-nic: hosts have one NIC each; give --c4-topology tests/scenarios/attach/two-nics.yml")
    return several[0], several[-1]


def with_failover(*, balance=False):
    """The variables of a program that goes on at another NIC, and with `balance` uses both."""
    return {PRELOAD: ":".join(map(str, build.libraries(failover=True)))} | failover_variables({}, balance=balance)


def _wait_until_carried(switches, before, ran):
    """Wait until the program has carried so much that it is under way."""
    while max(carried_bytes(before, switches.ports()).values()) < STARTED_BYTES:
        assert ran.poll() is None
        time.sleep(0.02)


def _wait_until_shared(switches, ports, before, ran, ends):
    """Wait until both NICs of the end that sends have sent much."""
    names = {ports.leading[nic.address] for host in ends for nic in host.nics}
    sent = set()
    while len(sent) < 2:
        assert ran.poll() is None, f"only {sent} have sent much"
        time.sleep(0.02)
        now = switches.ports()
        carried = carried_bytes(before, now)
        busy = {f"{now[hop].switch}/{now[hop].interface}" for hop in carried if carried[hop] >= STARTED_BYTES}
        sent = busy & names


@pytest.fixture
def lose(inject, ports):
    """A host's first NIC is lost in this way, for as long as a `with` block takes."""

    @contextmanager
    def lost(how, host):
        place = {"host": host.name, "nic": 0}
        if how == "port":
            place = {"at": ports.leading[host.nics[0].address]}
        with ExitStack() as faults:
            if how in {"both", "tx", "rx"}:
                faults.enter_context(inject("nic.blackhole", **place, direction=how))
            elif how == "flap":
                faults.enter_context(inject("nic.flap", **place, period_s=0.4, duty=0.25))
            elif how == "second":
                with inject("nic.down", **place):
                    time.sleep(SECOND_S)
                faults.enter_context(inject("nic.down", host=host.name, nic=1))
            else:
                faults.enter_context(inject("port.down" if how == "port" else "nic.down", **place))
            yield

    return lost


@pytest.fixture
def exact(program, ends, tmp_path):
    """Start the program that checks every byte; returns what waits for its end."""
    subprocess.run(
        ["gcc", "-std=c11", "-D_DEFAULT_SOURCE", "-O2", "-o", tmp_path / "exact", EXACT, "-libverbs"], check=True
    )
    path = program.copy(tmp_path / "exact", ends)

    def start(mode, messages=MESSAGES):
        words = [path, mode, "{device}", "{gid}", str(BYTES), str(messages)]
        ran = program([*words, "{server}"], server=words, hosts=ends, environment=with_failover())

        def end():
            ran.wait(WITHIN_S)
            return Ended(
                tuple(process.code for process in ran.processes), "".join(each.output() for each in ran.processes)
            )

        return end

    return start


def test_the_kernel_says_whose_queue_pair_it_is(program, ends, inventory):
    """Agents take words for a queue pair from its own process only: it and others learn the same of who that is."""
    path = program.copy(EXACT.with_name("queue_pair_owner.py"), ends[:1])
    access = inventory.access[ends[0].name]
    with remote.connect(ends[0].name, access) as connection:
        answer = connection.run([access.python, path, ends[0].nics[0].device], timeout_s=60.0)
    said = json.loads(answer.stdout)
    assert [said["own"], said["seen"], said["none"]] == [said["pid"], said["pid"], None]


@pytest.mark.parametrize("mode", MODES)
def test_without_a_failure(exact, mode):
    """Nothing is different."""
    ended = exact(mode)()
    assert ended.codes == (0, 0), ended.printed
    assert "go on at" not in ended.printed


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("which", [0, 1])
def test_a_nic_is_lost(exact, ends, inject, measure, mode, which):
    """Every byte comes once, in order; the program pauses for less than 50 ms."""
    draw = random.Random(f"{mode} {which}")
    end = exact(mode)
    time.sleep(draw.uniform(EARLIEST_S, LATEST_S))
    with inject("nic.down", host=ends[which].name, nic=0):
        ended = end()
    assert ended.codes == (0, 0), ended.printed
    assert "go on at" in ended.printed
    measure("failover.pause_s", ended.pause_s, unit="s", at_most=PAUSE_AT_MOST_S["event"], program=mode, notice="event")


@pytest.mark.parametrize("mode", MODES)
def test_a_nic_carries_nothing(exact, ends, inject, measure, mode):
    """Without an event, answers of the peer and the NIC's own retries show it: within 150 ms."""
    end = exact(mode)
    time.sleep(random.Random(mode).uniform(EARLIEST_S, LATEST_S))
    with inject("nic.blackhole", host=ends[0].name, nic=0, direction="both"):
        ended = end()
    assert ended.codes == (0, 0), ended.printed
    assert "go on at" in ended.printed
    limit_s = PAUSE_AT_MOST_S["probes"]
    measure("failover.pause_s", ended.pause_s, unit="s", at_most=limit_s, program=mode, notice="probes")


@pytest.mark.parametrize("words", ["ib_send_bw", "ib_write_bw", "ib_read_bw", "ib_write_bw -q 4 -b"])
@pytest.mark.parametrize("which", [None, 0, 1])
def test_perftest(program, ends, inject, measure, switches, words, which):
    """It ends well when a NIC is lost; without a loss it stays, with the rate that it has without failover."""
    if not program.has(words.split()[0], ends):
        pytest.skip(f"no-{words.split()[0]}: not on PATH of every host; install perftest")
    before = switches.ports()
    ran = program(f"{words} {PERFTEST}", hosts=ends, environment=with_failover())
    with ExitStack() as faults:
        if which is not None:
            _wait_until_carried(switches, before, ran)
            time.sleep(random.Random(words).uniform(0.0, SOON_S))
            faults.enter_context(inject("nic.down", host=ends[which].name, nic=0))
        codes = ran.wait(WITHIN_S)
    printed = "".join(each.output() for each in ran.processes)
    assert codes == 0, printed
    if which is not None:
        assert "go on at" in printed
        return
    assert "go on at" not in printed
    ways = 2 if "-b" in words else 1
    ratio = ran.figure.value / (ways * payload_bound(ends[0].nics[0].rate_bps))
    measure("failover.cost_fraction", 1 - ratio, at_most=0.01, program=words)


@pytest.mark.parametrize("which", [None, 0, 1])
def test_load_is_shared(program, ends, inject, measure, switches, ports, which):
    """Four queue pairs have nearly the bandwidth of both NICs, and end well when one of these is lost, at either end.

    Limit: what is lost until the queue pairs have moved, 50 ms of a run of 1.6 s at one NIC's rate, is 2 %; and as much
    again for the last messages, which do not end at the same moment.
    """
    if not program.has("ib_write_bw", ends):
        pytest.skip("no-ib_write_bw: not on PATH of every host; install perftest")
    before = switches.ports()
    ran = program(f"ib_write_bw -q 4 {PERFTEST}", hosts=ends, environment=with_failover(balance=True))
    with ExitStack() as faults:
        if which is not None:
            _wait_until_shared(switches, ports, before, ran, ends)
            faults.enter_context(inject("nic.down", host=ends[which].name, nic=which))
        codes = ran.wait(WITHIN_S)
    printed = "".join(each.output() for each in ran.processes)
    assert codes == 0, printed
    if which is None:
        ratio = ran.figure.value / payload_bound(ends[0].nics[0].rate_bps)
        measure("failover.balance_ratio", ratio, at_least=1.9, program="ib_write_bw -q 4")


@pytest.mark.parametrize("what", ["tag_bw", "ucp_put_bw"])
@pytest.mark.parametrize("which", [0, 1])
def test_ucx(program, ends, inject, switches, what, which):
    """UCX's own benchmark ends well when a NIC of either end is lost."""
    if not program.has("ucx_perftest", ends):
        pytest.skip("no-ucx_perftest: not on PATH of every host; install ucx-utils")
    before = switches.ports()
    words = f"ucx_perftest -t {what} -s 65536 -n 1500 -w 10"
    ran = program(words, hosts=ends, environment=UCX | with_failover())
    _wait_until_carried(switches, before, ran)
    time.sleep(random.Random(f"{what} {which}").uniform(0.0, SOON_S))
    with inject("nic.down", host=ends[which].name, nic=0):
        codes = ran.wait(WITHIN_S)
    printed = "".join(each.output() for each in ran.processes)
    assert codes == 0, printed
    assert "go on at" in printed


@pytest.mark.parametrize("mpi", ["openmpi", "mpich"])
def test_mpi(program, ends, inject, tmp_path, mpi):
    """All-reduces over UCX are exact while a NIC is lost: its shared receive queues move with their queue pairs."""
    if not program.has(f"mpicc.{mpi}", ends):
        pytest.skip(f"no-mpicc.{mpi}: install lib{mpi}-dev")
    source = EXACT.with_name("all_reduce.c")
    subprocess.run([f"mpicc.{mpi}", "-O2", "-o", tmp_path / "all_reduce", source], check=True)
    path = program.copy(tmp_path / "all_reduce", ends)
    words = [f"mpirun.{mpi}", "-np", "2", path, "65536", "200"]
    ran = program(words, hosts=ends, environment=UCX | with_failover())
    while not ran.figures and ran.poll() is None:
        time.sleep(0.02)
    with inject("nic.down", host=ends[0].name, nic=0):
        code = ran.wait(WITHIN_S, check=False)
    printed = "".join(each.output() for each in ran.processes)
    assert code == 0, printed
    assert len(ran.figures) == 200
    assert "go on at" in printed


@pytest.mark.parametrize("batch", range(TRIALS // AT_ONCE))
def test_trials(exact, ends, lose, measure, pytestconfig, batch):
    """Losses at either end at random moments, of several kinds: all results are exact, and no pause is long."""
    draw = random.Random(f"{pytestconfig.option.c4_seed} {batch}")
    pauses_s = {"event": 0.0, "probes": 0.0}
    wrong = []
    for _ in range(AT_ONCE):
        how, mode = draw.choice(list(LOSSES)), draw.choice(MODES)
        end = exact(mode, MESSAGES * (2 if how == "second" else 1))
        time.sleep(draw.uniform(EARLIEST_S, LATEST_S))
        with lose(how, draw.choice(ends)):
            ended = end()
        time.sleep(HEALED_S)
        if ended.codes != (0, 0):
            wrong.append((how, mode, ended))
            continue
        pauses_s[LOSSES[how]] = max(pauses_s[LOSSES[how]], ended.pause_s)
    measure("failover.exact_fraction", 1 - len(wrong) / AT_ONCE, equals=1, batch=batch)
    assert not wrong
    for notice, pause_s in pauses_s.items():
        measure("failover.pause_s", pause_s, unit="s", at_most=PAUSE_AT_MOST_S[notice], program="exact", notice=notice)
