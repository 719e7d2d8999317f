"""Overlapping faults whose injectors and watchdogs are killed at random: every lease ends in time, nothing is left."""

import json
import random
import shlex
import time

import netns_hosts
import pytest
from operator_host import INJECT

from c4bench.model.measurement import Clock, Outcome
from c4bench.record import Ledger

REASON = netns_hosts.missing("sudo", "visudo")
pytestmark = pytest.mark.skipif(bool(REASON), reason=REASON)
NIC = {"host": "n1", "index": 0, "device": "", "netdev": "nic0", "address": "", "rate_bps": 1e9}
FAULTS = [("nic.down", {}), ("nic.mtu", {"mtu_bytes": 1300}), ("nic.gid", {}), ("host.memory", {"bytes": 1 << 20})]
LATE_S = 1.0
# One for each victim, and each fault in one of them.
SEEDS, NIGHTLY_SEEDS = (0, 1, 9), range(200)
# The injector is the oldest process with these words, its watchdog the newest.
VICTIMS = {"injector": "-o", "watchdog": "-n", "all": ""}


def state(host):
    """The NIC's link, addresses and routes, the host's memory files and what the injector has in force."""
    return host.root(
        "ip -o link show nic0 | sed 's/ qlen.*//'; ip -4 -o address show nic0; ip route; "
        "ls /dev/shm/c4bench-fault 2>&1; "
        f"{INJECT} status; ls /var/lib/c4bench/faults"
    )


def begin(host, draw):
    """Begin two or three faults, held as if by sessions that stay open; the longest lease (s)."""
    chosen = draw.sample(FAULTS, draw.randint(2, 3))
    leases = [round(draw.uniform(1.0, 2.5), 2) for _ in chosen]
    for (name, parameters), lease_s in zip(chosen, leases, strict=True):
        nic = {"nic": NIC} if name.startswith("nic.") else {}
        request = {"fault": name, "host": "n1", "lease_s": lease_s, "witness_s": 0.05, "parameters": parameters} | nic
        hold = f"sudo -n {INJECT} hold {shlex.quote(json.dumps(request))}"
        host.asked(f"(sleep 8 | timeout 20 {hold}) >/dev/null 2>&1 &")
        time.sleep(draw.uniform(0, 0.2))
    return max(leases)


def sequence(host, seed):
    """One sequence: what was killed, how late each lease ended (s), and whether the host is as it was before."""
    draw, before, known = random.Random(seed), state(host), len(host.audit())
    lease_s = begin(host, draw)
    time.sleep(draw.uniform(0.1, 1.2))
    victim = draw.choice([*VICTIMS])
    host.root(f"pkill -9 {VICTIMS[victim]} -f '[c]4bench.inject hold' || true")
    time.sleep(lease_s + LATE_S)
    if victim == "all":  # nobody is left to revert: the host restarts, and its unit does this at boot
        host.root(f"{INJECT} heal || true")
    lines = host.audit()[known:]
    begun = {line["id"]: line for line in lines if line["event"] == "intent"}
    ended = {line["id"]: line for line in lines if line["event"] == "reverted"}
    assert begun.keys() <= ended.keys(), f"seed {seed}: a fault has not ended"
    late = [
        ended[fault]["time_s"] - line["time_s"] - line["lease_s"]
        for fault, line in begun.items()
        if ended[fault]["by"] != "heal"
    ]
    return victim, late, len(begun), state(host) == before


@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(SEEDS, id="day"),
        pytest.param(NIGHTLY_SEEDS, id="night", marks=[pytest.mark.nightly, pytest.mark.timeout(7200)]),
    ],
)
def test_killed_injectors_and_watchdogs_leave_nothing(host, drills, request, seeds):
    """After each sequence every lease is over at most 1 s late, and the host is as it was."""
    ledger = Ledger(drills, request.node.nodeid)
    applied = 0
    for seed in seeds:
        victim, late, begun, clean = sequence(host, seed)
        applied += begun
        for late_s in late:
            taken = ledger.measure(
                "lease.overrun_s", max(0.0, late_s), "s", at_most=LATE_S, clock=Clock.MACHINE, killed=victim, seed=seed
            )
            assert taken.outcome is Outcome.PASS, f"seed {seed}: a lease ended {late_s:.2f} s late ({victim} killed)"
        ledger.measure(
            "hosts.clean_after_drill_fraction", float(clean), "1", equals=1, clock=Clock.NONE, how=f"{victim} {seed}"
        )
        assert clean, f"seed {seed}: something is left after {victim} was killed"
    assert applied >= len(seeds), "too few faults began for this to prove anything"
