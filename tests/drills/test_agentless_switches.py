"""Faults of a switch that runs nothing of c4bench: each applied, seen and undone, whoever is killed meanwhile.

The switch is plain Linux with a real SSH server and a real atd. Its kernel is this machine's: faults that need netem or
filters are not among these, since it may lack them.
"""

import json
import random
import time
from contextlib import ExitStack
from typing import NamedTuple

import pytest
import switch_scene
from switch_scene import wait_for

from c4bench.model.measurement import Clock, Outcome
from c4bench.record import Ledger

REASON = switch_scene.missing()
pytestmark = pytest.mark.skipif(bool(REASON), reason=REASON)
LATE_S, LEASE_S, PATIENCE_S = 1.0, 6, 40.0
ROUNDS = 50
FAULTS = {
    "link.rate": "leaf0/up0 fraction=0.5 direction=tx",
    "link.ecmp_out": "leaf0/up1",
    "link.down": "leaf0/up1",
    "link.flap": "leaf0/up1 period_s=1 count=20",
    "link.ecmp_member": "leaf0/up1",
    "port.down": "leaf0/down0",
    "switch.misrouted": "leaf0/up0",
    "switch.down": "leaf0",
}
QUICK = ("link.rate", "link.flap")
VICTIMS = ("controller", "sessions", "network", "switch", "nobody")
WIDE = ("--within", "fabric")


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    with switch_scene.scene(tmp_path_factory.mktemp("switch")) as made:
        yield made


@pytest.fixture
def record(drills, request):
    """`record(name, value, unit, limit, **labels)`: a figure, whose limit fails the drill when it is missed."""
    ledger = Ledger(drills, request.node.nodeid)

    def say(name, value, unit, at_most, clock=Clock.NONE, **labels):
        taken = ledger.measure(name, float(value), unit, at_most=at_most, clock=clock, **labels)
        assert taken.outcome is Outcome.PASS, f"{name} is {value} ({labels})"

    return say


def applying(scene, name, *words):
    return scene.applying(name, *FAULTS[name].split(), *WIDE, *words)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.nightly) for name in FAULTS]
)
def test_a_fault_is_seen_and_leaves_nothing(scene, record, name):
    """The switch's own configuration shows it while it is in force, `heal` ends it, and all is as before."""
    before = scene.state()
    with applying(scene, name, "lease=60s") as process:
        answer = json.loads(process.stdout.readline())
        assert answer["witness"]["seen"], answer
        wait_for("the fault is in force", lambda: scene.state() != before)
        scene.kill_controller()
    healed = [json.loads(line) for line in scene.fault("heal").splitlines() if line.startswith("{")]
    assert [(one["by"], one["residue"]) for one in healed] == [("heal", [])]
    left = set(before) ^ set(scene.state())
    record("switch.residue", len(left), "1", 0, how="healed", fault=name)


def test_what_two_faults_claim_is_refused(scene):
    """A second fault of the same link is refused, by the journal here and by the switch's own file for another one."""
    before = scene.state()
    with applying(scene, "link.ecmp_out", "lease=300s") as process:
        process.stdout.readline()
        assert "has claimed; end that fault first" in scene.fault("apply", "link.down", "leaf0/up1")
        scene.kill_controller()
        scene.run("mv /var/lib/c4bench /root/elsewhere", switch_scene.CONTROLLER)
        assert "is changed by another fault there; end that first" in scene.fault("apply", "link.down", "leaf0/up1")
        scene.run("rm -r /var/lib/c4bench; mv /root/elsewhere /var/lib/c4bench", switch_scene.CONTROLLER)
    scene.fault("heal")
    assert set(scene.state()) == set(before)


def strike(scene, victim, stack):
    """Kill, cut or restart one of them; a network stays cut until the stack ends."""
    match victim:
        case "controller":
            scene.kill_controller()
        case "sessions":
            scene.kill_sessions()
        case "network":
            stack.enter_context(scene.unplugged())
        case "switch":
            scene.reboot_switch()


class Round(NamedTuple):
    """What came of a fault in a round: whether it was in force when something died, and whether it had been seen."""

    in_force: bool
    seen: bool


def wait_to_strike(scene, draw, before, leases):
    """Wait for a moment of the asking, or of the time in which the fault is in force; whether it has been by then."""
    late, pause_s, began_s = draw.random() < 0.5, draw.uniform(0.3, 6.0), time.monotonic()
    at_s, in_force = began_s + (PATIENCE_S if late else pause_s), False
    while time.monotonic() < at_s:
        leases |= scene.leases()
        if not in_force and leases and set(scene.state()) != set(before):
            in_force, at_s = True, min(at_s, time.monotonic() + pause_s / 3)
        time.sleep(0.1)
    return in_force


def killed_round(scene, record, name, seed):
    """A fault under a lease, and something that dies while it is asked for or in force; then nothing is left of it."""
    draw = random.Random(f"{name} {seed}")
    victim = draw.choice(VICTIMS)
    before, leases, over_s = scene.state(), {}, 0.0
    with applying(scene, name, f"lease={LEASE_S}s") as process, ExitStack() as stack:
        in_force = wait_to_strike(scene, draw, before, leases)
        strike(scene, victim, stack)
        began_s = now_s = time.time()
        while now_s < max([began_s + LEASE_S, *leases.values()]) or over_s == now_s:
            assert now_s < began_s + PATIENCE_S, f"{name} is not over ({victim}, {seed})"
            leases |= scene.leases()
            now_s = time.time()
            over_s = now_s if set(scene.state()) != set(before) else over_s
            time.sleep(0.1)
        ends_s = max(leases.values(), default=over_s)
        process.kill()
        answers = [line for line in process.stdout if line.startswith("{")]
    how = {"fault": name, "killed": victim, "seed": seed}
    record("lease.overrun_s", max(0.0, over_s - ends_s), "s", LATE_S, Clock.MACHINE, **how)
    scene.kill_controller()
    scene.fault("heal")
    assert not scene.leases(), how
    record("switch.residue", len(set(before) ^ set(scene.state())), "1", 0, how="killed", **how)
    return Round(in_force, bool(answers) and json.loads(answers[0])["witness"]["seen"])


@pytest.mark.parametrize(("seed", "name"), [(1, "link.ecmp_out"), (2, "link.rate")])
def test_a_lease_ends_whoever_is_killed(scene, record, seed, name):
    """Controller, sessions or network may be gone: the switch undoes the fault within a second of its lease."""
    killed_round(scene, record, name, seed)


@pytest.mark.nightly
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", FAULTS)
def test_no_driver_outlives_its_lease(scene, record, name):
    """The same of each driver, fifty times; in most rounds the fault was in force, and in some it had been seen."""
    rounds = [killed_round(scene, record, name, seed) for seed in range(ROUNDS)]
    in_force, seen = (sum(kind) for kind in zip(*rounds, strict=True))
    record("switch.rounds", ROUNDS, "1", ROUNDS, fault=name, in_force=in_force, seen=seen)
    assert in_force > ROUNDS / 4
    assert seen > ROUNDS / 10


@pytest.mark.nightly
def test_a_restart_ends_a_fault_and_the_journal_knows(scene):
    """What was not saved is gone with the restart; `heal` finds nothing to undo, says why, and removes the entry."""
    before = scene.state()
    with applying(scene, "link.ecmp_out", "lease=60s") as process:
        process.stdout.readline()
        scene.kill_controller()
    scene.reboot_switch()
    answer = json.loads(scene.fault("heal").splitlines()[0])
    assert "the switch has restarted since" in answer["problems"][0]
    assert answer["residue"] == []
    assert not scene.leases()
    assert len(scene.state()) == len(before)


BROKEN = {
    "a switch without a timer": ("kill $(cat /run/atd.pid)", "atd", "no timer could be armed"),
    "a full disk": (
        "mkdir -p /run/c4bench-switch; mount -t tmpfs -o size=8k,mode=700 none /run/c4bench-switch; "
        "head -c 8000 /dev/zero > /run/c4bench-switch/filler",
        "umount /run/c4bench-switch",
        "takes no file",
    ),
    "a missing tool": ("mv /usr/bin/flock /root", "mv /root/flock /usr/bin", "it has no flock"),
    "another format": (
        "printf '#!/bin/sh\\necho Objekt nicht gefunden\\n' > /usr/local/bin/tc; chmod +x /usr/local/bin/tc",
        "rm /usr/local/bin/tc",
        "printed what c4bench cannot read",
    ),
    "another system": ("mkdir -p /etc/cumulus", "rmdir /etc/cumulus", "it is no plain Linux; correct c4.os"),
}


@pytest.mark.nightly
@pytest.mark.parametrize("what", BROKEN)
def test_a_switch_that_cannot_be_changed_safely_is_not_changed(scene, what):
    """One line says why, and nothing is changed."""
    broken, whole, why = BROKEN[what]
    before = scene.state()
    scene.run(broken)
    try:
        said = scene.fault("apply", "link.ecmp_out", "leaf0/up1", *WIDE)
    finally:
        scene.run(whole)
    assert why in said
    assert len(said.strip().splitlines()) == 1
    assert set(scene.state()) == set(before)


@pytest.mark.nightly
def test_a_slow_switch_with_a_banner_in_another_language_is_changed(scene, record):
    """Its banner is passed over, its messages are asked for in English, and the lease ends in time all the same."""
    before = scene.state()
    scene.run(
        "echo 'echo Willkommen auf leaf0; export LANG=de_DE.UTF-8' > /root/.bashrc; "
        "printf '#!/bin/sh\\nsleep 0.2\\nexec /usr/sbin/ip \"$@\"\\n' > /usr/local/bin/ip; chmod +x /usr/local/bin/ip"
    )
    try:
        with applying(scene, "link.down", "lease=20s") as process:
            answer = json.loads(process.stdout.readline())
            assert answer["witness"]["seen"]
            scene.kill_controller()
            time.sleep(max(0.0, answer["expires_s"] - time.time()))
            over_s = wait_for("the fault is over", lambda: set(scene.state()) == set(before))
    finally:
        scene.run("rm -f /root/.bashrc /usr/local/bin/ip")
    record("lease.overrun_s", max(0.0, over_s - answer["expires_s"]), "s", 3.0, Clock.MACHINE, how="slow")
    scene.fault("heal")
    assert set(scene.state()) == set(before)
