"""Pauses of a link are no failure of it: operations wait, no rail is given up, and nothing is blamed but the pauses.

A fabric with flow control is needed: `--c4-topology tests/scenarios/faults/pausing.yml`.
"""

import time
from contextlib import ExitStack

import pytest

from c4bench import remote
from c4bench.model.diagnosis import Cause
from c4bench.model.measurement import Clock
from c4bench.workload.trials import Trial

SIZE_BYTES = 128 << 10
STORM_S, NIGHT_S, PARTS = 1.5, 600.0, 4
# Half of the time the port stands still, for 5 ms each.
REGULAR = {"shortest_s": 0.005, "longest_s": 0.005, "duty": 0.5}
RANDOM = {"shortest_s": 0.0001, "longest_s": 0.01, "duty": 0.3}


@pytest.fixture(scope="module", autouse=True)
def _pausing(inventory):
    """Skips before anything is opened, so that scenarios after these run as if these did not exist."""
    host = inventory.hosts[0].name
    with remote.connect(host, inventory.access[host]) as connection:
        if not connection.run(["sh", "-c", "cat /proc/net/pfc 2>/dev/null || true"], timeout_s=60.0).stdout:
            pytest.skip("no-pfc: links have no flow control; try --c4-topology tests/scenarios/faults/pausing.yml")


def check(accounts, measure, **labels):
    """Every element is exact, and no rail was given up."""
    assert [each.error for each in accounts if each.error] == []
    exact, checked = sum(each.exact for each in accounts), sum(each.checked for each in accounts)
    measure("resilient.exact_fraction", exact / checked, equals=1, clock=Clock.NONE, **labels)
    died = sum(each.resilience.died for each in accounts)
    measure("resilient.failovers_in_pauses", died, at_most=0, clock=Clock.NONE, **labels)


@pytest.mark.nightly
@pytest.mark.needs("disruptive", "root", hosts=4)
def test_a_storm_of_short_pauses_is_no_failure(start, several_nics, inject, measure):
    """A NIC that pauses its port for 5 ms each 10 ms loses no rail."""
    ranks = start(several_nics)
    ranks.give(Trial("all_reduce", SIZE_BYTES, seconds=STORM_S, idle_s=0.002, fresh=True))
    with inject("nic.pause_storm", host=several_nics[1].name, nic=0, **REGULAR) as fault:
        accounts = ranks.take()
    assert fault.witness.seen
    check(accounts, measure, pauses="5 ms")


@pytest.mark.nightly
@pytest.mark.needs("disruptive", "root", hosts=4)
@pytest.mark.parametrize("first", range(PARTS))
def test_pauses_at_random_for_ten_minutes(start, several_nics, inject, cluster, measure, first):
    """NICs of two hosts, and then of the next two, pause for 0.1 to 10 ms at random: nobody gives a rail up for it.

    And nothing but the pauses is named.
    """
    ranks, part_s = start(several_nics), NIGHT_S / PARTS
    ranks.give(Trial("all_reduce", SIZE_BYTES, seconds=part_s, idle_s=0.05, fresh=True))
    with ExitStack() as faults:
        for nic in (nic for number in (first, first + 1) for nic in several_nics[number % len(several_nics)].nics):
            where = {"host": nic.host, "nic": nic.index}
            faults.enter_context(inject("nic.pause_storm", **where, **RANDOM, lease_s=2 * part_s))
        time.sleep(part_s)
        accounts = ranks.take()
    check(accounts, measure, pauses="0.1 to 10 ms", first=several_nics[first].name)
    wrong = [found for found in cluster.diagnoses(ranks.spec.id) if found.cause is not Cause.PAUSE_STORM]
    measure("pfc.false_findings", len(wrong), at_most=0, clock=Clock.NONE, first=several_nics[first].name)
    assert not wrong, [f"{one.component}: {one.evidence}" for one in wrong]
