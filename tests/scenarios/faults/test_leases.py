"""A fault ends with its lease, whatever becomes of the controller, the injector, the session or the host."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest

from c4bench.errors import C4Error, UnhealthyError
from c4bench.inject import catalogue
from c4bench.model.measurement import Clock

pytestmark = pytest.mark.needs("disruptive", "root")
LEASE_S = 6.0
LATE_S = 1.0
# From before the session is open until after the fault was to be reverted.
MOMENTS_S = (0.03, 0.08, 0.12, 0.2, 3.0)
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
    """Wait for the lease's end, and hold the host's own audit log against it: at least so many faults had begun."""

    def check(host, lease_s, since_s, how, at_least=1):
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
# All that drivers of a ConnectX change, as tools and files have it.
SETTINGS = """
ip -json address show dev {dev}; ip route show table all; ip neighbour show nud permanent; ethtool {dev}
mlnx_qos -i {dev} -a; ethtool --show-fec {dev}; grep -rs '' /sys/class/net/{dev}/ecn; cat /sys/class/net/{dev}/speed
pci=$(basename $(readlink -f /sys/class/infiniband/{device}/device))
mlxlink -d $pci; mlxreg -d $pci --yes --reg_name ROCE_ACCL --get; cat /sys/class/infiniband/{device}/tc/1/traffic_class
"""


@pytest.mark.nightly
def test_no_driver_of_a_connectx_outlives_its_lease(nic_hosts, injector, place, command, on, over, measure):
    """Whenever controllers, sessions and injectors are killed, every setting is as it was when the lease is over."""
    host, nic = nic_hosts[0].name, nic_hosts[0].nics[0]
    if "mlx5_core" not in on(host, f"readlink -f /sys/class/infiniband/{nic.device}/device/driver"):
        pytest.skip("no-connectx: the first host's NIC is none")
    specs = catalogue.load().specs
    faults = [name for name, spec in sorted(specs.items()) if name.startswith("nic.") and "mlx5_core" in spec.drivers]
    faults = [name for name in faults if can_be_had(injector, name, place(nic.name))]
    draw = random.Random(1)
    settings = SETTINGS.format(dev=nic.netdev, device=nic.device)
    before, residue = on(host, settings), []
    for number in range(ROUNDS):
        fault, began_s = faults[number % len(faults)], time.time()
        controller = command("apply", fault, nic.name, f"--lease={LEASE_S:g}s", "--last-nic")
        time.sleep(draw.uniform(0.0, LEASE_S))
        if draw.random() < 0.5:
            on(host, KILL)
        killed(controller)
        over(host, LEASE_S, began_s, f"{fault}, killed", at_least=0)
        now = on(host, settings)
        residue += [f"{fault}: {line}" for line in {*now.splitlines()} ^ {*before.splitlines()}]
        before = now
    measure("faults.residue", len(residue), at_most=0, clock=Clock.NONE, rounds=ROUNDS, faults=len(faults))
    assert not residue


def can_be_had(injector, name, where):
    """Whether a driver plans the fault there with what the catalogue has as its defaults."""
    try:
        return bool(injector.plan(name, where, {}).apply)
    except C4Error:
        return False
