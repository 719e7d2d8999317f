"""The NIC drivers on a real kernel: a veth pair in a network namespace that dies with the test."""

import os
import socket
import subprocess
import threading
import time

import pytest

from c4bench import namespaces
from c4bench.errors import UsageError
from c4bench.inject import hold, nics
from c4bench.inject.catalogue import load
from c4bench.inject.journal import Journal
from c4bench.inject.protocol import Applied
from c4bench.model.fabric import Nic
from c4bench.model.fault import FaultRequest

CATALOGUE = load()
SETUP = """\
ip link add nic0 type veth peer name far0
ip link set nic0 up
ip link set far0 up
ip address add 10.9.0.1/24 dev nic0
ip -6 address add fd09::1/64 dev nic0 nodad
ip route add 10.10.0.0/16 via 10.9.0.254 dev nic0 table 1000
ip -6 route add fd10::/64 via fd09::fe dev nic0
ip neighbour add 10.9.0.254 lladdr 02:00:00:00:00:fe dev nic0 nud permanent
"""
# What each fault needs, tried on the NIC itself, with the commands that undo the trial.
NEEDS = {
    "netem": ("tc qdisc add dev far0 root netem", "tc qdisc del dev far0 root"),
    "tbf": ("tc qdisc add dev far0 root tbf rate 1gbit burst 16k limit 1m", "tc qdisc del dev far0 root"),
    "redirection": (
        "ip link add try0 type ifb && ip link set try0 up && tc qdisc add dev far0 ingress && "
        "tc filter add dev far0 ingress matchall action mirred egress redirect dev try0",
        "tc qdisc del dev far0 ingress; ip link del try0",
    ),
}
CASES = [
    ("nic.down", {}, ()),
    ("nic.rate", {"direction": "tx"}, ("tbf",)),
    ("nic.rate", {"direction": "rx"}, ("tbf", "redirection")),
    ("nic.loss", {"direction": "tx", "probability": 0.1}, ("netem",)),
    ("nic.loss", {"direction": "rx", "probability": 0.1}, ("netem", "redirection")),
    ("nic.blackhole", {"direction": "tx"}, ("netem",)),
    ("nic.blackhole", {"direction": "rx"}, ("netem", "redirection")),
]


def shell(command, check=True):
    return subprocess.run(command, shell=True, capture_output=True, text=True, check=check)


@pytest.fixture(scope="module")
def nic():
    """The near end of the pair, in a namespace that only a sleeping process keeps."""
    if os.geteuid() != 0:
        pytest.skip("a network namespace needs root")
    keeper = subprocess.Popen(["unshare", "--net", "sh", "-c", "echo; exec sleep 600"], stdout=subprocess.PIPE)
    if not keeper.stdout.readline():
        pytest.skip("this machine allows no network namespaces")
    netns = f"/proc/{keeper.pid}/ns/net"
    with namespaces.network(netns):
        done = shell(SETUP, check=False)
    if done.returncode:
        keeper.kill()
        pytest.skip(f"this kernel has no veth: {done.stderr.strip()}")
    wait_for_addresses(netns)
    yield Nic("h0", 0, "", "nic0", "10.9.0.1", 1e9, netns=netns)
    keeper.kill()
    keeper.wait()
    keeper.stdout.close()


def wait_for_addresses(netns):
    """Until duplicate address detection is through: only then are the link-local routes there."""
    until_s = time.monotonic() + 10
    with namespaces.network(netns):
        while shell("ip -6 address show tentative").stdout or not shell("ip -6 address show dev nic0").stdout:
            if time.monotonic() > until_s:
                pytest.skip("this kernel gives no IPv6 addresses")
            time.sleep(0.1)


def need(nic, features):
    with namespaces.network(nic.netns):
        for feature in features:
            tried = shell(NEEDS[feature][0], check=False)
            shell(NEEDS[feature][1], check=False)
            if tried.returncode:
                pytest.skip(f"this kernel has no {feature}: {tried.stderr.strip().splitlines()[0]}")


def held_fault(nic, records, fault, **parameters):
    spec, request = CATALOGUE.resolve(FaultRequest(fault, "h0", nic, parameters=parameters))
    return spec, hold.Held(records, hold.lease_of(request))


@pytest.mark.parametrize(("fault", "parameters", "features"), CASES)
def test_a_reverted_fault_leaves_every_listing_as_it_was(nic, tmp_path, fault, parameters, features):
    """Queues, filters, addresses, routes, neighbours are listed to the byte as before, and differ during the fault."""
    need(nic, features)
    before = nics.listing(nic)
    spec, held = held_fault(nic, Journal(tmp_path), fault, **parameters)
    held.begin(spec)
    during = nics.listing(nic)
    reverted = held.end()
    assert nics.difference(before, during)
    assert reverted.residue == ()
    assert reverted.problems == ()
    assert nics.listing(nic) == before


def test_the_last_of_overlapping_faults_answers_for_all(nic, tmp_path):
    """While one is left nothing can be said of another's residue; the last is held against the state before all."""
    need(nic, ("netem",))
    records = Journal(tmp_path)
    before = nics.listing(nic)
    loss, first = held_fault(nic, records, "nic.loss", probability=0.1)
    first.begin(loss)
    down, second = held_fault(nic, records, "nic.down")
    second.begin(down)
    assert first.end().residue == ()
    assert nics.listing(nic) != before
    assert second.end().residue == ()
    assert nics.listing(nic) == before


def test_what_somebody_else_changed_meanwhile_is_a_residue(nic, tmp_path):
    """The host is not as it was, and the report says in what."""
    spec, held = held_fault(nic, Journal(tmp_path), "nic.down")
    held.begin(spec)
    with namespaces.network(nic.netns):
        shell("ip address add 10.77.0.1/24 dev nic0")
    residue = held.end().residue
    with namespaces.network(nic.netns):
        shell("ip address del 10.77.0.1/24 dev nic0")
    assert any("10.77.0.1" in line and line.startswith("+") for line in residue)


@pytest.mark.parametrize("direction", ["tx", "rx"])
def test_a_black_hole_is_witnessed_by_traffic_and_only_by_traffic(nic, tmp_path, direction):
    """With packets passing the fault is seen; on an idle NIC it is not, and so proves nothing."""
    need(nic, ("netem", "redirection"))
    request = FaultRequest("nic.blackhole", "h0", nic, parameters={"direction": direction}, witness_s=0.2)
    seen = {}
    for busy in (False, True):
        said = []
        stop = threading.Event()
        talker = threading.Thread(target=chatter, args=(nic, stop, "far0" if direction == "rx" else "nic0"))
        if busy:
            talker.start()
        reader, writer = os.pipe()
        os.close(writer)
        hold.hold(request, CATALOGUE, Journal(tmp_path), reader, said.append)
        os.close(reader)
        stop.set()
        if busy:
            talker.join()
        assert isinstance(said[0], Applied)
        seen[busy] = said[0].witness.seen
        assert said[1].residue == ()
    assert seen == {False: False, True: True}


def chatter(nic, stop, interface):
    """Raw frames out of one end of the pair, about one a millisecond."""
    with namespaces.network(nic.netns):
        line = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
        line.bind((interface, 0x88B5))
    with line:
        while not stop.wait(0.001):
            line.send(b"\xff" * 6 + b"\x02" * 6 + b"\x88\xb5" + b"x" * 100)


def test_an_interface_that_is_not_there_is_refused(nic, tmp_path):
    """The complaint names the interface and where it was looked for, and the journal stays empty."""
    missing = Nic("h0", 1, "", "nosuch0", "10.9.1.1", 1e9, netns=nic.netns)
    spec, held = held_fault(missing, Journal(tmp_path), "nic.down")
    with pytest.raises(UsageError, match="no interface nosuch0 in /proc/"):
        held.begin(spec)
    held.end()
    assert Journal(tmp_path).entries() == []
