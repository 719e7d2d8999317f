"""The limits of resilience, and harmless events: each has a defined result, and none is a hang."""

import random
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from c4bench.workload.trials import Trial

SIZE_BYTES = 128 << 10
# A silence that is probed, the probes of it, and those that tell whose host it is.
NAMED_S = 0.35
# A GID goes so long after it is asked for; connecting is to begin at about that time.
INJECTING_S, ABOUT_S = 0.114, 0.006


def check_exact(accounts):
    """All went well."""
    assert [each.error for each in accounts if each.error] == []
    assert all(each.exact == each.checked for each in accounts)


def check_all_up(accounts):
    """All went well, and every NIC is in use at the end."""
    check_exact(accounts)
    assert all(set(each.resilience.states) == {"up"} for each in accounts)


@pytest.mark.needs(hosts=4)
def test_host_without_a_nic(start, several_nics, inject, measure):
    """When all NICs of a host are lost every rank gets an error that names it; the others continue without it."""
    ranks = start(several_nics)
    lost = next(member for member in ranks.spec.members if member.host == several_nics[2].name)
    ranks.give(Trial("all_reduce", SIZE_BYTES, seconds=10.0, idle_s=0.01, fresh=True))
    with ExitStack() as faults:
        for nic in several_nics[2].nics:
            fault = faults.enter_context(inject("nic.blackhole", host=nic.host, nic=nic.index, direction="both"))
        accounts = ranks.take()
        assert all(each.lost == lost.rank for each in accounts), [each.error for each in accounts]
        assert all(f"host {lost.host}" in each.error for each in accounts)
        named_s = max(each.error_s for each in accounts) - fault.onset_s
        error_s = fault.clock_error_s + ranks.clock_error_s
        measure("resilient.named_s", named_s, unit="s", at_most=NAMED_S, plus_minus=error_s)
        left = ranks(Trial("all_reduce", SIZE_BYTES, seconds=0.05, without=(lost.rank,)))
        check_exact(left)
        assert [bool(each.spans) for each in left] == [rank != lost.rank for rank in range(ranks.size)]


@pytest.mark.needs(hosts=4)
def test_nic_is_down_when_ranks_connect(start, several_nics, inject):
    """Ranks that connect while a NIC is down work without it, and use it when it is back."""
    ranks = start(several_nics)
    with inject("nic.down", host=several_nics[1].name, nic=0):
        accounts = ranks(Trial("all_reduce", SIZE_BYTES, seconds=0.1, fresh=True))
    check_exact(accounts)
    assert sum(each.resilience.died for each in accounts) > 0
    check_all_up(ranks(Trial("all_reduce", SIZE_BYTES, seconds=1.5, idle_s=0.01)))


@pytest.mark.needs(hosts=4)
def test_gid_is_gone_when_ranks_connect(start, several_nics, inject):
    """Ranks that connect while a NIC has no GID work without it, and use it when it has one again."""
    ranks = start(several_nics)
    with inject("nic.gid", host=several_nics[1].name, nic=0):
        accounts = ranks(Trial("all_reduce", SIZE_BYTES, seconds=0.1, fresh=True))
    check_exact(accounts)
    assert sum(each.resilience.died for each in accounts) > 0
    assert any("no address" in why for each in accounts for why in each.resilience.reasons)
    check_all_up(ranks(Trial("all_reduce", SIZE_BYTES, seconds=1.5, idle_s=0.01)))


@pytest.mark.needs(hosts=4)
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(1, 6))])
def test_gid_changes_while_ranks_connect(start, several_nics, inject, seed):
    """A GID that disappears before, while or after ranks connect costs a NIC for a while, and no element is wrong."""
    draw = random.Random(seed)
    ranks = start(several_nics)
    nic = draw.choice([nic for host in several_nics for nic in host.nics])
    begin_s = time.time() + INJECTING_S + draw.uniform(-ABOUT_S, ABOUT_S)

    def connect():
        time.sleep(begin_s - time.time())
        ranks.give(Trial("all_reduce", SIZE_BYTES, seconds=1.5, idle_s=0.01, fresh=True))

    with ThreadPoolExecutor(1) as pool:
        connecting = pool.submit(connect)
        with inject("nic.gid", host=nic.host, nic=nic.index):
            connecting.result()
    check_all_up(ranks.take())


@pytest.mark.needs(hosts=4)
def test_frozen_rank_is_not_a_dead_path(start, several_nics, inject):
    """A rank that is stopped for a third of a second loses no rail, since its NIC answers probes."""
    ranks = start(several_nics)
    victim = ranks.spec.members[1]
    ranks.give(Trial("all_reduce", SIZE_BYTES, seconds=0.8, idle_s=0.01, fresh=True))
    with inject("process.stop", host=victim.host, job=ranks.spec.id, rank=victim.rank):
        time.sleep(0.3)
    accounts = ranks.take()
    check_exact(accounts)
    assert [each.resilience.died for each in accounts] == [0] * ranks.size
    assert max(ended - began for began, ended in accounts[0].spans) > 0.25


@pytest.mark.needs(hosts=4)
def test_short_flap_is_hidden(start, several_nics, port_towards, blink, measure):
    """A leaf port that is down for 20 ms during an operation causes a retransmission, and no rail dies."""
    ranks = start(several_nics)
    port = port_towards(several_nics[1].nics[0])
    ranks.give(Trial("all_reduce", SIZE_BYTES, seconds=1.5, fresh=True))
    blink(port, 0.02)
    accounts = ranks.take()
    check_exact(accounts)
    assert [each.resilience.died for each in accounts] == [0] * ranks.size
    # It may hit one by which the ranks agree on whether to go on.
    longer_s = max(longer_than_usual_s(spans) for spans in (accounts[0].spans, accounts[0].agreed))
    assert longer_s > 0.02, "the flap hit no running operation"
    measure("resilient.hidden_flap_s", longer_s, unit="s", at_most=0.15, down_s=0.02)


def longer_than_usual_s(spans):
    """How much longer than the median the longest took."""
    took_s = sorted(ended - began for began, ended in spans)
    return took_s[-1] - took_s[len(took_s) // 2]


@pytest.mark.needs(hosts=4)
def test_management_network_is_down(start, several_nics, inject, port_towards):
    """A NIC that dies while the management network is cut costs no element: control messages use other NICs."""
    ranks = start(several_nics)
    nic = several_nics[1].nics[0]
    port = port_towards(nic)
    ranks.give(Trial("all_reduce", SIZE_BYTES, seconds=5.0, idle_s=0.02, enough=9, fresh=True))
    with inject("host.management_cut", host=nic.host, lease_s=3.0), inject("port.down", at=port):
        time.sleep(0.5)
    accounts = ranks.take()
    check_exact(accounts)
    assert sum(each.resilience.died for each in accounts) > 0
