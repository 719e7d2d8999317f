"""The NIC drivers on a real kernel: a veth pair in a network namespace that dies with the test."""

import os
import subprocess
import time
from contextlib import ExitStack, contextmanager

import pytest

from c4bench import namespaces
from c4bench.errors import UnhealthyError, UsageError
from c4bench.inject import fault_session, interfaces
from c4bench.inject.catalogue import load
from c4bench.inject.journal import Journal
from c4bench.model.fabric import Nic
from c4bench.model.fault import FaultRequest, TargetKind

CATALOGUE = load()
SETUP = """\
ip link add nic0 type veth peer name far0 netns {far}
ip link set nic0 up
nsenter --net=/proc/{far}/ns/net ip address add 10.9.0.254/24 dev far0
nsenter --net=/proc/{far}/ns/net ip link set far0 address 02:00:00:00:00:fe up
ip address add 10.9.0.1/24 dev nic0
ip -6 address add fd09::1/64 dev nic0 nodad
ip route add 10.10.0.0/16 via 10.9.0.254 dev nic0 table 1000
ip -6 route add fd10::/64 via fd09::fe dev nic0
ip neighbour add 10.9.0.254 lladdr 02:00:00:00:00:fe dev nic0 nud permanent
"""
# What each fault needs, tried on a separate device.
NEEDS = {
    "netem": "tc qdisc add dev try0 root netem",
    "tbf": "tc qdisc add dev try0 root tbf rate 1gbit burst 16k limit 1m",
    "redirection": "tc qdisc add dev try0 ingress && ip link add try1 type ifb && "
    "tc filter add dev try0 ingress matchall action mirred egress redirect dev try1",
    "filters": "tc qdisc add dev try0 clsact && "
    "tc filter add dev try0 egress protocol ip u32 match u8 0x11 0xff at 28 action drop",
}
BOTH = ("netem", "redirection")
CASES = [
    ("nic.down", {}, ()),
    ("nic.mtu", {"mtu_bytes": 1400}, ()),
    ("nic.rate", {"direction": "tx"}, ("tbf",)),
    ("nic.rate", {"direction": "rx"}, ("tbf", "redirection")),
    ("nic.rate", {"direction": "both"}, ("tbf", "redirection")),
    ("nic.loss", {"direction": "tx", "probability": 0.1}, ("netem",)),
    ("nic.loss", {"direction": "rx", "probability": 0.1}, BOTH),
    ("nic.corrupt", {"direction": "both", "probability": 0.1}, BOTH),
    ("nic.delay", {"direction": "both", "delay_s": 0.001}, BOTH),
    ("nic.reorder", {"direction": "tx"}, ("netem",)),
    ("nic.blackhole", {"direction": "tx"}, ("netem",)),
    ("nic.blackhole", {"direction": "rx"}, BOTH),
    ("link.down", {}, ()),
    ("link.ecmp_member", {}, ()),
    ("link.acks_lost", {}, ("filters",)),
]


def shell(command, check=True):
    return subprocess.run(command, shell=True, capture_output=True, text=True, check=check)


@pytest.fixture(scope="module")
def nic():
    """The near end of the pair, in a namespace that only a sleeping process keeps, and that these tests are in."""
    if os.geteuid() != 0:
        pytest.skip("a network namespace needs root")
    with ExitStack() as stack:
        near, far = (stack.enter_context(network_of_its_own()) for _ in range(2))
        stack.enter_context(namespaces.network(f"/proc/{near}/ns/net"))
        done = shell(SETUP.format(far=far), check=False)
        if done.returncode:
            pytest.skip(f"this kernel has no veth: {done.stderr.strip()}")
        wait_for_addresses()
        yield Nic("h0", 0, "", "nic0", "10.9.0.1", 1e9)


@contextmanager
def network_of_its_own():
    """The process that keeps a new network namespace."""
    keeper = subprocess.Popen(["unshare", "--net", "sh", "-c", "echo; exec sleep 600"], stdout=subprocess.PIPE)
    try:
        if not keeper.stdout.readline():
            pytest.skip("this machine allows no network namespaces")
        yield keeper.pid
    finally:
        keeper.kill()
        keeper.wait()
        keeper.stdout.close()


def wait_for_addresses():
    """Until duplicate address detection is through: only then are the link-local routes there."""
    until_s = time.monotonic() + 10
    while shell("ip -6 address show tentative").stdout or not shell("ip -6 address show dev nic0").stdout:
        if time.monotonic() > until_s:
            pytest.skip("this kernel gives no IPv6 addresses")
        time.sleep(0.1)


def need(features):
    for feature in features:
        tried = shell(f"ip link add try0 type veth peer name try2 && {NEEDS[feature]}", check=False)
        shell("ip link del try0; ip link del try1", check=False)
        if tried.returncode:
            pytest.skip(f"this kernel has no {feature}: {tried.stderr.strip().splitlines()[0]}")


def held_fault(nic, records, fault, **parameters):
    place = (
        {"nic": nic}
        if CATALOGUE.find(fault).target is TargetKind.NIC
        else {"port": nic.netdev, "netns": "/proc/self/ns/net"}
    )
    spec, request = CATALOGUE.resolve(FaultRequest(fault, "h0", parameters=parameters, **place))
    return spec, fault_session.FaultSession(records, fault_session.lease_of(request))


@pytest.mark.parametrize(("fault", "parameters", "features"), CASES)
def test_a_reverted_fault_leaves_every_listing_as_it_was(nic, tmp_path, fault, parameters, features):
    """Queues, filters, addresses, routes, neighbours are listed to the byte as before, and differ during the fault."""
    need(features)
    before = interfaces.listing(nic)
    spec, held = held_fault(nic, Journal(tmp_path), fault, **parameters)
    held.begin(spec)
    during = interfaces.listing(nic)
    reverted = held.end()
    assert interfaces.difference(before, during)
    assert reverted.residue == ()
    assert reverted.problems == ()
    assert interfaces.listing(nic) == before


def test_the_last_of_overlapping_faults_answers_for_all(nic, tmp_path):
    """While one is left nothing can be said of another's residue; the last is held against the state before all."""
    need(("netem",))
    records = Journal(tmp_path)
    before = interfaces.listing(nic)
    loss, first = held_fault(nic, records, "nic.loss", probability=0.1)
    first.begin(loss)
    down, second = held_fault(nic, records, "nic.down")
    second.begin(down)
    assert first.end().residue == ()
    assert interfaces.listing(nic) != before
    assert second.end().residue == ()
    assert interfaces.listing(nic) == before


def test_what_somebody_else_changed_meanwhile_is_a_residue(nic, tmp_path):
    """The host is not as it was, and the report says in what."""
    spec, held = held_fault(nic, Journal(tmp_path), "nic.down")
    held.begin(spec)
    shell("ip address add 10.77.0.1/24 dev nic0")
    residue = held.end().residue
    shell("ip address del 10.77.0.1/24 dev nic0")
    assert any("10.77.0.1" in line and line.startswith("+") for line in residue)


def witnessed(nic, root, fault, witness_s=0.2, **parameters):
    """What a whole hold says, with the controller gone from the first."""
    sent = []
    reader, writer = os.pipe()
    os.close(writer)
    request = FaultRequest(fault, "h0", nic, parameters=parameters, witness_s=witness_s)
    fault_session.hold(request, CATALOGUE, Journal(root), reader, sent.append)
    os.close(reader)
    return sent


@pytest.mark.parametrize(
    ("fault", "parameters", "features"),
    [
        # The witness returns once it has seen both changes, however late a busy machine makes them.
        ("nic.flap", {"period_s": 0.2, "count": 2, "witness_s": 5.0}, ()),
        ("nic.mtu", {"mtu_bytes": 1400}, ()),
        ("nic.blackhole", {"direction": "tx"}, ("netem",)),
        ("nic.blackhole", {"direction": "rx"}, BOTH),
        ("nic.loss", {"direction": "both", "probability": 0.1}, BOTH),
        ("nic.corrupt", {"direction": "rx", "probability": 0.1}, BOTH),
        ("nic.delay", {"direction": "rx", "delay_s": 0.01}, BOTH),
        ("nic.reorder", {"direction": "tx", "probability": 0.2}, ("netem",)),
    ],
)
def test_an_idle_nic_shows_its_fault_to_probes(nic, tmp_path, fault, parameters, features):
    """Nobody uses the NIC, and the fault is seen all the same: the witness brings its own traffic."""
    need(features)
    applied, healed = witnessed(nic, tmp_path, fault, **parameters)
    assert applied.witness.seen, applied.witness
    assert applied.observed_s >= applied.onset_s
    assert healed.recovered
    assert healed.residue == ()


def test_a_nic_whose_neighbour_was_silent_before_shows_nothing(nic, tmp_path):
    """Silence during the fault is no evidence where there was silence before it."""
    need(("netem",))
    shell("ip neighbour replace 10.9.0.254 lladdr 02:00:00:00:00:aa dev nic0 nud permanent")
    applied, _ = witnessed(nic, tmp_path, "nic.blackhole", direction="tx")
    shell("ip neighbour replace 10.9.0.254 lladdr 02:00:00:00:00:fe dev nic0 nud permanent")
    assert not applied.witness.seen


def test_a_host_that_is_not_as_before_is_quarantined_until_it_is(nic, tmp_path):
    """A host with a residue gets no fault; once somebody has removed it, checking again is enough."""
    records = Journal(tmp_path)
    spec, held = held_fault(nic, records, "nic.down")
    held.begin(spec)
    shell("ip address add 10.77.0.1/24 dev nic0")
    held.end()
    _, other = held_fault(nic, records, "nic.down")
    with pytest.raises(UnhealthyError, match=r"h0 is quarantined since nic\.down-.*10\.77\.0\.1"):
        other.begin(spec)
    other.end()
    assert records.recheck_quarantine().residue
    shell("ip address del 10.77.0.1/24 dev nic0")
    assert records.recheck_quarantine() is None
    assert records.quarantine is None


def test_a_flap_that_was_healed_does_not_come_back(nic, tmp_path):
    """A flap that finds its fault over changes nothing, whatever has ended the fault."""
    records = Journal(tmp_path)
    spec, held = held_fault(nic, records, "nic.flap", period_s=0.1, duty=0.5, count=50)
    held.begin(spec)
    time.sleep(0.25)
    records.revert(held.lease.id, "heal")
    before = interfaces.listing(nic)
    time.sleep(0.3)
    assert interfaces.listing(nic) == before
    assert held.end().by == "another"


@pytest.mark.usefixtures("nic")
def test_an_interface_that_is_not_there_is_refused(tmp_path):
    """The complaint names the interface and how to see those there are, and the journal stays empty."""
    missing = Nic("h0", 1, "", "nosuch0", "10.9.1.1", 1e9)
    spec, held = held_fault(missing, Journal(tmp_path), "nic.down")
    with pytest.raises(UsageError, match="no interface nosuch0; see `ip link`"):
        held.begin(spec)
    held.end()
    assert Journal(tmp_path).entries() == []
