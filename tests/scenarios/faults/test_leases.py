"""A fault ends with its lease, whatever becomes of the controller, the injector, the session or the host."""

import json
import multiprocessing
import os
import random
import signal
import sys
import time
from contextlib import ExitStack, suppress
from itertools import product
from operator import itemgetter
from pathlib import Path

import pytest

from c4bench import remote
from c4bench.cli.main import main
from c4bench.errors import UnhealthyError
from c4bench.inject import catalogue
from c4bench.model.measurement import Clock
from c4bench.pytest_plugin.scope import no_fault

pytestmark = pytest.mark.needs("disruptive", "root")
LEASE_S = 6.0
LATE_S = 1.0
# From before the session is open until after the fault was to be reverted.
MOMENTS_S = (0.03, 0.08, 0.12, 0.2, 3.0)
JOURNALS = Path("/var/lib/c4bench/switches")
AUDIT = "cat /var/lib/c4bench/audit.jsonl 2>/dev/null || true"
# The injector, and not the watchdog that it has let go of (whose parent is the host's first process).
KILL = """
for p in $(pgrep -f 'c4bench[.]inject [h]old'); do
  [ "$(awk '{print $4}' /proc/$p/stat)" = 1 ] || kill -9 $p
done; true
"""


class Controller(multiprocessing.get_context("fork").Process):
    """`c4bench` with these words, in a process group of its own; to import all modules again would take a second."""

    def __init__(self, words):
        super().__init__()
        self.words, (reader, self.writer) = words, os.pipe()
        self.stdout = os.fdopen(reader, "rb")

    def run(self):
        """In the process."""
        os.setpgid(0, 0)
        os.dup2(self.writer, 1)
        os.close(self.writer)
        sys.stdout = os.fdopen(1, "w", closefd=False)
        sys.exit(main(self.words))

    def start(self):
        """As a process that leads its group, whichever of the two is first."""
        super().start()
        os.close(self.writer)
        os.setpgid(self.pid, self.pid)

    def end(self):
        """It, and the `ssh` that it has started, as a lost machine would: at once."""
        with suppress(ProcessLookupError):  # it has ended by itself
            os.killpg(self.pid, signal.SIGKILL)


@pytest.fixture
def command(inventory, tmp_path):
    """`c4bench fault` with these words, as a process."""

    def start(action, *words):
        history = [f"--history={tmp_path}/faults.jsonl"] if action == "apply" else []
        process = Controller(["fault", action, *words, "--json", f"--hosts={inventory.path}", *history])
        process.start()
        return process

    return start


@pytest.fixture
def ask(inventory):
    """As `on`, by connections that stay open: what is asked in every round."""
    with ExitStack() as stack:
        known = {}

        def run(host, command):
            if host not in known:
                known[host] = stack.enter_context(remote.connect(host, inventory.access[host]))
            return known[host].run(["sh", "-c", command], timeout_s=60.0).stdout.decode()

        yield run


@pytest.fixture
def over(on, measure, command, clocks):
    """Wait for the lease's end, and hold the host's own audit log against it: at least so many faults had begun.

    Then `heal` must find nothing, unless it is not asked.
    """

    def check(host, lease_s, since_s, how, at_least=1, *, read=on, heal=True):
        time.sleep(max(0.0, since_s + lease_s + LATE_S - time.time()))
        lines = [json.loads(line) for line in read(host, AUDIT).splitlines()]
        # By a controller's clock it cannot have begun before; by the host's own it may seem to.
        early_s = since_s - clocks.error_s(host)
        intents = [line for line in lines if line["event"] == "intent"]
        begun = {line["id"]: line["time_s"] for line in intents if clocks.ours(host, line["time_s"]) >= early_s}
        ended = {line["id"]: line["time_s"] for line in lines if line["event"] == "reverted"}
        assert len(begun) >= at_least, f"{len(begun)} faults were begun, not {at_least}: nothing is proven"
        assert begun.keys() <= ended.keys(), "a fault was begun and never ended"
        for fault, at_s in begun.items():
            measure("lease.overrun_s", max(0.0, ended[fault] - at_s - lease_s), unit="s", at_most=LATE_S, how=how)
        if not heal:
            return
        clean = finished(command("heal")) == (0, b"")
        measure("hosts.clean_after_drill_fraction", float(clean), equals=1, clock=Clock.NONE, how=how)
        assert clean, "`heal` found something left"

    return check


def finished(process):
    """The exit code of a command that ends by itself, and what it said."""
    said = process.stdout.read()
    process.stdout.close()
    process.join()
    return process.exitcode, said


def killed(process):
    """End a controller, and close what it has printed to."""
    process.end()
    process.join()
    process.stdout.close()


@pytest.mark.parametrize(
    "moment_s", [*(pytest.param(each, marks=pytest.mark.nightly) for each in MOMENTS_S[:-1]), MOMENTS_S[-1]]
)
def test_the_controller_is_killed(moment_s, nic_hosts, command, over, on):
    """SIGKILL at any step of the protocol leaves a NIC that is up when the lease is over."""
    began_s = time.time()
    controller = command("apply", "nic.down", f"{nic_hosts[0].name}/0", f"--lease={LEASE_S:g}s", "--last-nic")
    time.sleep(moment_s)
    killed(controller)
    # At the early moments the fault may not have begun yet; at the last it has.
    begun = int(moment_s == max(MOMENTS_S))
    over(nic_hosts[0].name, LEASE_S, began_s, f"controller killed after {moment_s:g} s", at_least=begun)
    assert "DOWN" not in on(nic_hosts[0].name, "cat /sys/class/infiniband/*/ports/1/state")


def test_the_injector_is_killed(nic_hosts, place, injector, on, over):
    """SIGKILL of the injector on the host: its watchdog ends the fault on time."""
    began_s = time.time()
    fault = injector.apply_at("nic.down", place(f"{nic_hosts[0].name}/0"), lease_s=LEASE_S)
    fault.__enter__()
    on(nic_hosts[0].name, KILL)
    assert "DOWN" in on(nic_hosts[0].name, "cat /sys/class/infiniband/*/ports/1/state")
    with pytest.raises(UnhealthyError, match=nic_hosts[0].name):
        fault.__exit__(None, None, None)
    over(nic_hosts[0].name, LEASE_S, began_s, "injector killed")
    assert "ACTIVE" in on(nic_hosts[0].name, "cat /sys/class/infiniband/*/ports/1/state")


def test_the_session_is_cut(nic_hosts, command, over):
    """With the management network cut, a fault on a NIC of the host ends by itself all the same."""
    host, began_s = nic_hosts[0].name, time.time()
    fault = command("apply", "nic.down", f"{host}/0", f"--lease={LEASE_S:g}s", "--last-nic")
    fault.stdout.readline()
    cut = command("apply", "host.management_cut", host, f"--lease={LEASE_S:g}s")
    cut.stdout.readline()
    time.sleep(0.5)
    killed(fault)
    killed(cut)
    over(host, LEASE_S, began_s, "session cut", at_least=2)


def test_the_host_crashes(nic_hosts, place, injector, on, command):
    """A host that dies under a fault comes back without it, and has nothing to heal."""
    host = nic_hosts[-1].name
    nic = nic_hosts[-1].nics[0]
    if why := injector.obstacle("nic.rate", place(nic.name), {"direction": "both"}):
        pytest.skip(no_fault({"nic.rate": f"{nic.name}: {why}"}))
    queues = f"tc qdisc show dev {nic.netdev} | sed 's/ [0-9a-f]*: / /'"
    before = on(host, queues)
    fault = injector.apply_at("nic.rate", place(f"{host}/0"), {"direction": "both"}, lease_s=3 * LEASE_S)
    fault.__enter__()
    assert on(host, queues) != before
    with injector.apply_at("host.crash", place(host), lease_s=LEASE_S):
        pass
    with pytest.raises(UnhealthyError, match=host):
        fault.__exit__(None, None, None)
    assert on(host, queues) == before
    assert finished(command("heal")) == (0, b"")


def test_a_wrong_argument_changes_nothing(nic_hosts, command, on):
    """Unknown faults, wrong units, targets that are not there: exit code 2, and the host's log has no new line."""
    before = on(nic_hosts[0].name, AUDIT)
    target = f"{nic_hosts[0].name}/0"
    for words in (
        ("nic.dwon", target),
        ("nic.delay", target, "delay_s=1kg"),
        ("nic.rate", target, "fraction=7"),
        ("nic.down", "nosuch/0"),
        ("nic.down", f"{nic_hosts[0].name}/77"),
        ("switch.down", nic_hosts[0].name),
        ("nic.down", target, "--within=process"),
    ):
        assert finished(command("apply", *words)) == (2, b""), words
    assert on(nic_hosts[0].name, AUDIT) == before


def test_a_plan_touches_nothing(nic_hosts, command, state, measure):
    """`apply --plan` prints the commands, and the fabric is what it was."""
    before = state()
    code, said = finished(command("apply", "nic.rate", f"{nic_hosts[0].name}/0", "fraction=25%", "--plan"))
    assert code == 0
    assert any(tool in json.loads(said)["apply"][0] for tool in ("tc qdisc", "mlnx_qos"))
    left = state() != before
    measure("faults.residue", float(left), at_most=0, clock=Clock.NONE)


ROUNDS = 50
CATALOGUE = catalogue.load().specs
CONNECTX = sorted(name for name, spec in CATALOGUE.items() if name.startswith("nic.") and "mlx5_core" in spec.drivers)
# What needs a switch of hosts, and what takes away all links of a switch: one in each group, at the first switch.
FIRST = ("link.ecmp_member", "link.ecmp_out", "port.down", "switch.down")
SONIC = [*FIRST, *sorted({name for name, spec in CATALOGUE.items() if "sonic" in spec.drivers} - {*FIRST})]
# What hardware can do of a fault; flaps are in force most of the time.
PARAMETERS = {
    "link.flap": {"duty": 0.7},
    "link.rate": {"direction": "tx"},
    "nic.flap": {"duty": 0.7},
    "nic.speed": {"speed": "10G"},
}
UNSEEN = {"nic.qos": "it is seen in the traffic of a job, and these links are idle"}
# In these each fault shows; then all that drivers of a ConnectX change, as tools and files have it.
SETTINGS = """
pci=$(basename $(readlink -f /sys/class/infiniband/{device}/device)); ls /run | grep c4bench-pauses
ip -json address show dev {dev}; mlnx_qos -i {dev} -a; mlxreg -d $pci --yes --reg_name ROCE_ACCL --get
grep -rs '' /sys/class/net/{dev}/ecn; cd /sys/class/infiniband/{device}
cat /sys/class/net/{dev}/speed tc/1/traffic_class device/current_link_speed
"""
STATE = (
    "ip route show table all; ip neighbour show nud permanent; ethtool {dev}; ethtool --show-fec {dev}; mlxlink -d $pci"
)
# All that drivers of SONiC change; then what faults of other switches change too, with the files of ours.
SWITCH_SETTINGS = "sudo sonic-cfggen -d --print-data; ip neighbour show nud permanent\n"
SWITCH_STATE = """
show interfaces status; sudo ls /run/c4bench-switch 2>/dev/null | grep -v -e over -e lock; true
"""
VICTIMS = ("controller", "sessions", "both")
# When the fault that ended last there did, as the switch itself has marked it in a folder that only root may read.
OVER = """sudo sh -c "stat -c %.9Y /run/c4bench-switch/*.over" 2>/dev/null | sort -n | tail -n 1"""


class Trial:
    """A fault in a place of its own, round after round: the settings that show it, and what else is to stay."""

    def __init__(self, fault, where, settings, rest):
        self.fault, self.where, self.host = fault, where, where.partition("/")[0]
        self.settings, self.state, self.before = settings, settings + rest, ""
        self.draw, self.parameters = None, PARAMETERS.get(fault, {})
        self.victim, self.changed, self.in_force, self.seen = "", False, 0, 0

    def words(self):
        """What `c4bench fault apply` is told."""
        values = [f"{key}={value}" for key, value in self.parameters.items()]
        return self.fault, self.where, *values, f"--lease={LEASE_S:g}s", "--last-nic", "--within=fabric"


def seen_by(process):
    """Whether the fault's witness had seen it, by what the controller, which is killed now, has printed."""
    process.end()
    os.set_blocking(process.stdout.fileno(), False)
    printed = process.stdout.read() or b""
    killed(process)
    answers = [json.loads(line) for line in printed.splitlines() if line.startswith(b"{")]
    return bool(answers) and answers[0]["witness"]["seen"]


@pytest.fixture
def drill(injector, place, command, ask, measure, pytestconfig):
    """Rounds of trials at once: each is struck at a moment of its own and ends in time, and all is as before."""

    def possible(trial):
        why = UNSEEN.get(trial.fault) or injector.obstacle(trial.fault, place(trial.where), trial.parameters)
        if why:
            measure("campaign.left_out", 1, clock=Clock.NONE, fault=trial.fault, why=why)
        return not why

    def struck(trials, strike):
        began_s = time.time()
        started = [(trial.draw.uniform(0.0, LEASE_S), trial, command("apply", *trial.words())) for trial in trials]
        for moment_s, trial, controller in sorted(started, key=itemgetter(0)):
            time.sleep(max(0.0, began_s + moment_s - time.time()))
            trial.changed = ask(trial.host, trial.settings) != trial.before
            strike(trial, controller)
        return began_s, [(trial, controller) for _, trial, controller in started]

    def run(kind, asked, strike, check_over):
        if not (trials := [*filter(possible, asked)]):
            pytest.skip("unsupported: no fault of the group can be had here")
        for trial in trials:
            trial.draw = random.Random(f"{pytestconfig.option.c4_seed} {trial.fault}")
            trial.before = ask(trial.host, trial.settings)
        before, residue = {trial.host: ask(trial.host, trial.state) for trial in asked}, []
        for _ in range(ROUNDS):
            began_s, controllers = struck(trials, strike)
            for trial, controller in controllers:
                check_over(trial, began_s)
                trial.in_force += trial.changed
                trial.seen += seen_by(controller)
            now = {trial.host: ask(trial.host, trial.state) for trial in asked}
            residue += [line for host in now for line in {*now[host].splitlines()} ^ {*before[host].splitlines()}]
            before = now
        measure("faults.residue", len(residue), at_most=0, clock=Clock.NONE, drill=kind)
        assert not residue
        for trial in trials:
            enough(measure, kind, trial)

    return run


def enough(measure, kind, trial):
    """A drill of 50 rounds says something only where the fault was in force in many of them."""
    how = {"drill": kind, "fault": trial.fault, "in_force": trial.in_force, "seen": trial.seen}
    measure("lease.rounds", ROUNDS, at_least=ROUNDS, clock=Clock.NONE, **how)
    assert trial.in_force > ROUNDS / 4, how
    assert trial.seen > ROUNDS / 10, how


@pytest.mark.nightly
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("faults", [CONNECTX[:8], CONNECTX[8:]], ids=itemgetter(0))
def test_no_driver_of_a_connectx_outlives_its_lease(faults, nic_hosts, drill, command, ask, over):
    """Whenever controllers, sessions and injectors are killed, every setting is as it was when the lease is over."""
    driver = "readlink -f /sys/class/infiniband/{}/device/driver"
    nics = [host.nics[0] for host in nic_hosts if "mlx5_core" in ask(host.name, driver.format(host.nics[0].device))]
    if len(nics) < len(faults):
        pytest.skip(f"no-connectx: {len(nics)} hosts have one, and {len(faults)} faults at once need one each")

    def strike(trial, controller):
        if trial.draw.random() < 0.5:
            ask(trial.host, KILL)
        controller.end()

    def check_over(trial, began_s):
        over(trial.host, LEASE_S, began_s, f"{trial.fault}, killed", at_least=0, read=ask, heal=False)

    trials = [
        Trial(fault, nic.name, *(text.format(dev=nic.netdev, device=nic.device) for text in (SETTINGS, STATE)))
        for fault, nic in zip(faults, nics, strict=False)
    ]
    drill("connectx", trials, strike, check_over)
    assert finished(command("heal")) == (0, b"")


def kill_all(program, word):
    """End every process here of this program whose command line has the word, at once."""
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            line = (path / "cmdline").read_bytes()
            if line.startswith(program.encode()) and word.encode() in line:
                os.kill(int(path.name), signal.SIGKILL)


@pytest.fixture
def own_links(switch_names, inventory, ports):
    """A port of each SONiC switch to another switch, no two of them of one link."""
    switches = [name for name in switch_names if inventory.facts[name].os == "sonic"]
    if len(switches) < 4:
        pytest.skip(f"unsupported: {len(switches)} switches that permit faults run SONiC, and four at once are needed")
    across = [[port for port in ports.across if port.partition("/")[0] == name] for name in switches]
    return next(ways for ways in product(*across) if len({ports.addresses[port] for port in ways}) == len(ways))


def place_of(fault, across, ports):
    """Where a fault of a switch happens: the port between switches, one to a host, or all of the switch."""
    switch = across.partition("/")[0]
    if fault == "port.down":
        return next(port for port in ports.towards if port.partition("/")[0] == switch)
    return switch if fault == "switch.down" else across


@pytest.mark.nightly
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("faults", [SONIC[first::4] for first in range(4)], ids=itemgetter(0))
def test_no_driver_of_sonic_outlives_its_lease(faults, own_links, ports, drill, command, ask, measure, inventory):
    """Whenever controller, watchdog and sessions are killed, the switch is as it was a second after the lease."""

    def strike(trial, controller):
        trial.victim = trial.draw.choice(VICTIMS)
        if trial.victim != "sessions":
            controller.end()
            kill_all(sys.executable, f'"host":"{trial.host}"')
        if trial.victim != "controller":
            kill_all("ssh", inventory.access[trial.host].address)

    def check_over(trial, began_s):
        ends_s = max([began_s, *leases_of(trial.host, began_s)])
        time.sleep(max(0.0, ends_s + LATE_S - time.time()))
        ended_s = float(ask(trial.host, OVER) or 0.0)
        assert ended_s >= began_s or not trial.changed, f"{trial.fault} was in force, and no end of it is marked"
        how = f"{trial.fault}, {trial.victim} killed"
        measure("lease.overrun_s", max(0.0, ended_s - ends_s), unit="s", at_most=LATE_S, how=how)

    places = [place_of(fault, port, ports) for fault, port in zip(faults, own_links, strict=False)]
    trials = [Trial(*each, SWITCH_SETTINGS, SWITCH_STATE) for each in zip(faults, places, strict=True)]
    drill("sonic", trials, strike, check_over)
    assert finished(command("heal"))[0] == 0


def leases_of(switch, since_s):
    """When the leases of a switch end that were given since then, by the controller's journal."""
    path = JOURNALS / switch / "audit.jsonl"
    lines = map(json.loads, path.read_text().splitlines() if path.exists() else ())
    begun = [line for line in lines if line["event"] == "intent" and line["time_s"] >= since_s]
    # A lease is named after its beginning.
    return [int(line["id"].split("-")[1]) / 1e9 + line["lease_s"] for line in begun]
