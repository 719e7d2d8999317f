"""A fault ends with its lease, whatever becomes of the controller, the injector, the session or the host."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from c4bench.errors import C4Error, UnhealthyError
from c4bench.inject import catalogue
from c4bench.model.measurement import Clock

pytestmark = pytest.mark.needs("disruptive", "root")
LEASE_S = 6.0
LATE_S = 1.0
# From before the session is open until after the fault was to be reverted.
MOMENTS_S = (0.03, 0.08, 0.12, 0.2, 3.0)
JOURNALS = Path("/var/lib/c4bench/switches")
AUDIT = "cat /var/lib/c4bench/audit.jsonl 2>/dev/null || true"
# The injector, and not the watchdog that it has let go of (whose parent is the host's first process).
KILL = """
for p in /proc/[0-9]*; do
  parent=$(awk '{print $4}' $p/stat 2>/dev/null)
  if tr '\\0' ' ' 2>/dev/null < $p/cmdline | grep -q 'c4bench[.]inject [h]old' && [ "$parent" != 1 ]; then
    kill -9 ${p#/proc/}
  fi
done; true
"""


@pytest.fixture
def command(inventory, tmp_path):
    """`c4bench fault` with these words, as a process."""

    def start(action, *words):
        argv = [
            sys.executable,
            "-m",
            "c4bench.cli.main",
            "fault",
            action,
            *words,
            "--json",
            f"--hosts={inventory.path}",
        ]
        if action == "apply":
            argv.append(f"--history={tmp_path}/faults.jsonl")
        return subprocess.Popen(argv, stdout=subprocess.PIPE, start_new_session=True)

    return start


@pytest.fixture
def over(on, measure, command, clocks):
    """Wait for the lease's end, and hold the host's own audit log against it: at least so many faults had begun.

    Then `heal` must find nothing, unless it is not asked.
    """

    def check(host, lease_s, since_s, how, at_least=1, *, heal=True):
        time.sleep(max(0.0, since_s + lease_s + LATE_S - time.time()))
        lines = [json.loads(line) for line in on(host, AUDIT).splitlines()]
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
    with process:
        said = process.stdout.read()
    return process.returncode, said


def killed(process):
    """End a controller, and the `ssh` it has started, as a lost machine would: at once."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()


@pytest.mark.parametrize(
    "moment_s",
    [MOMENTS_S[0], *(pytest.param(each, marks=pytest.mark.nightly) for each in MOMENTS_S[1:-1]), MOMENTS_S[-1]],
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
    assert "tc qdisc" in json.loads(said)["apply"][0]
    left = state() != before
    measure("faults.residue", float(left), at_most=0, clock=Clock.NONE)


ROUNDS = 50
CATALOGUE = catalogue.load().specs
CONNECTX = sorted(name for name, spec in CATALOGUE.items() if name.startswith("nic.") and "mlx5_core" in spec.drivers)
SONIC = sorted(name for name, spec in CATALOGUE.items() if "sonic" in spec.drivers)
# All that drivers of a ConnectX change, as tools and files have it.
SETTINGS = """
ip -json address show dev {dev}; ip route show table all; ip neighbour show nud permanent; ethtool {dev}
mlnx_qos -i {dev} -a; ethtool --show-fec {dev}; grep -rs '' /sys/class/net/{dev}/ecn; cat /sys/class/net/{dev}/speed
pci=$(basename $(readlink -f /sys/class/infiniband/{device}/device))
mlxlink -d $pci; mlxreg -d $pci --yes --reg_name ROCE_ACCL --get; cat /sys/class/infiniband/{device}/tc/1/traffic_class
"""
# All that drivers of SONiC change.
SWITCH_SETTINGS = """
sudo sonic-cfggen -d --print-data; ip neighbour show nud permanent; show interfaces status
sudo ls /run/c4bench-switch 2>/dev/null | grep -v -e over -e lock; true
"""
VICTIMS = ("controller", "sessions", "both")
# When the fault that ended last there did, as the switch itself has marked it in a folder that only root may read.
OVER = """sudo sh -c "stat -c %.9Y /run/c4bench-switch/*.over" 2>/dev/null | sort -n | tail -n 1"""


def seen_by(process):
    """Whether the fault's witness had seen it, by what the controller, which is killed now, has printed."""
    os.killpg(process.pid, signal.SIGKILL)
    os.set_blocking(process.stdout.fileno(), False)
    printed = process.stdout.read() or b""
    killed(process)
    answers = [json.loads(line) for line in printed.splitlines() if line.startswith(b"{")]
    return bool(answers) and answers[0]["witness"]["seen"]


def enough(measure, kind, name, in_force, seen, residue):
    """A drill of 50 rounds says something only where the fault was in force in many of them."""
    how = {"drill": kind, "fault": name, "in_force": in_force, "seen": seen}
    measure("lease.rounds", ROUNDS, at_least=ROUNDS, clock=Clock.NONE, **how)
    measure("faults.residue", len(residue), at_most=0, clock=Clock.NONE, **how)
    assert not residue
    assert in_force > ROUNDS / 4
    assert seen > ROUNDS / 10


@pytest.mark.nightly
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", CONNECTX)
def test_no_driver_of_a_connectx_outlives_its_lease(name, nic_hosts, injector, place, command, on, over, measure):
    """Whenever controllers, sessions and injectors are killed, every setting is as it was when the lease is over."""
    host, nic = nic_hosts[0].name, nic_hosts[0].nics[0]
    if "mlx5_core" not in on(host, f"readlink -f /sys/class/infiniband/{nic.device}/device/driver"):
        pytest.skip("no-connectx: the first host's NIC is none")
    if why := obstacle(injector, name, place(nic.name), {}):
        pytest.skip(f"unsupported: {why}")
    draw = random.Random(name)
    settings = SETTINGS.format(dev=nic.netdev, device=nic.device)
    before, residue, in_force, seen = on(host, settings), [], 0, 0
    for _ in range(ROUNDS):
        began_s = time.time()
        controller = command("apply", name, nic.name, f"--lease={LEASE_S:g}s", "--last-nic")
        time.sleep(draw.uniform(0.0, LEASE_S))
        in_force += on(host, settings) != before
        if draw.random() < 0.5:
            on(host, KILL)
        seen += seen_by(controller)
        over(host, LEASE_S, began_s, f"{name}, killed", at_least=0, heal=False)
        now = on(host, settings)
        residue += [*{*now.splitlines()} ^ {*before.splitlines()}]
        before = now
    assert finished(command("heal")) == (0, b"")
    enough(measure, "connectx", name, in_force, seen, residue)


def kill_all(words):
    """End every process here whose command line has one of these, at once."""
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if any(word in (path / "cmdline").read_bytes() for word in words):
                os.kill(int(path.name), signal.SIGKILL)


@pytest.mark.nightly
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", SONIC)
def test_no_driver_of_sonic_outlives_its_lease(name, up_and_across, injector, place, command, on, measure, inventory):
    """Whenever controller, watchdog and sessions are killed, the switch is as it was a second after the lease."""
    across, towards = up_and_across
    switch = across.partition("/")[0]
    if inventory.facts[switch].os != "sonic":
        pytest.skip(f"unsupported: {switch} does not run SONiC")
    where = {"port.down": towards, "switch.down": switch}.get(name, across)
    parameters = {"direction": "tx"} if name == "link.rate" else {}
    if why := obstacle(injector, name, place(where), parameters):
        pytest.skip(f"unsupported: {why}")
    words = [f"{key}={value}" for key, value in parameters.items()]
    draw, session = random.Random(name), inventory.access[switch].address.encode()
    before, residue, in_force, seen = on(switch, SWITCH_SETTINGS), [], 0, 0
    for _ in range(ROUNDS):
        began_s = time.time()
        controller = command("apply", name, where, *words, f"--lease={LEASE_S:g}s", "--within=fabric")
        time.sleep(draw.uniform(0.0, LEASE_S))
        changed = on(switch, SWITCH_SETTINGS) != before
        in_force += changed
        if (victim := draw.choice(VICTIMS)) != "sessions":
            os.killpg(controller.pid, signal.SIGKILL)
            kill_all([b"c4bench.inject\0--own\0hold"])
        if victim != "controller":
            kill_all([session])
        ends_s = max([began_s, *leases_of(switch, began_s)])
        time.sleep(max(0.0, ends_s + LATE_S - time.time()))
        now = on(switch, SWITCH_SETTINGS)
        seen += seen_by(controller)
        residue += [*{*now.splitlines()} ^ {*before.splitlines()}]
        ended_s = float(on(switch, OVER) or 0.0)
        assert ended_s >= began_s or not changed, f"{name} was in force, and the switch has marked no end of it"
        overrun_s = max(0.0, ended_s - ends_s)
        measure("lease.overrun_s", overrun_s, unit="s", at_most=LATE_S, how=f"{name}, {victim} killed")
        before = now
    code, _ = finished(command("heal"))
    assert code == 0
    enough(measure, "sonic", name, in_force, seen, residue)


def leases_of(switch, since_s):
    """When the leases of a switch end that were given since then, by the controller's journal."""
    path = JOURNALS / switch / "audit.jsonl"
    lines = map(json.loads, path.read_text().splitlines() if path.exists() else ())
    begun = [line for line in lines if line["event"] == "intent" and line["time_s"] >= since_s]
    # A lease is named after its beginning.
    return [int(line["id"].split("-")[1]) / 1e9 + line["lease_s"] for line in begun]


def obstacle(injector, name, where, parameters):
    """Why no driver plans the fault there; "" where one does."""
    try:
        return "" if injector.plan(name, where, parameters).apply else "its plan is empty"
    except C4Error as error:
        return str(error)
