"""What is refused although it is well-formed, and what sees a host go and come back."""

import socket
import subprocess
import threading
import time

import msgspec
import pytest
from fakes import NIC, nic_request, target

from c4bench.errors import UsageError
from c4bench.inject import controller, fault_session, targets
from c4bench.inject.catalogue import load
from c4bench.model.fabric import Host
from c4bench.model.fault import BlastRadius

CATALOGUE = load()
OTHER = msgspec.structs.replace(NIC, index=1, netdev="h5n1", device="h5r1")
FOUND = target().listing


@pytest.fixture(autouse=True)
def _no_management(monkeypatch):
    monkeypatch.setattr(targets, "management_interface", lambda _: "eth0")
    monkeypatch.delenv("SSH_CONNECTION", raising=False)


def check(request, fault="nic.down", in_force=()):
    fault_session.refuse_unsafe(CATALOGUE.find(fault), request, FOUND, in_force)


def test_the_default_route_is_refused(monkeypatch):
    """Cutting that interface would cut off the host."""
    monkeypatch.setattr(targets, "management_interface", lambda _: "h5n0")
    with pytest.raises(UsageError, match="h5/0 carries the default route of h5"):
        check(nic_request("nic.down"))


def test_the_interface_of_the_session_is_refused(monkeypatch):
    """The way we came by is known by its address, whatever routes say."""
    monkeypatch.setenv("SSH_CONNECTION", "10.1.1.9 50000 10.1.1.1 22")
    with pytest.raises(UsageError, match=r"carries your own session \(10\.1\.1\.1\)"):
        check(nic_request("nic.rate"), "nic.rate")
    monkeypatch.setenv("SSH_CONNECTION", "10.1.1.9 50000 10.77.1.1 22")
    check(nic_request("nic.rate"), "nic.rate")


@pytest.mark.parametrize(
    ("fault", "last_nic", "up", "refused"),
    [
        ("nic.down", False, set(), True),
        ("nic.down", False, {OTHER}, False),
        ("nic.down", False, {NIC}, True),
        ("nic.down", True, set(), False),
        ("nic.rate", False, set(), False),
    ],
)
def test_the_last_nic_is_cut_off_only_when_asked_for(monkeypatch, fault, last_nic, up, refused):
    """Another NIC must work, and be hit by no other fault; a NIC that is only slower still works."""
    monkeypatch.setattr(fault_session, "running", lambda nics: sum(nic in up for nic in nics))
    request = msgspec.structs.replace(nic_request(fault), nics=(NIC, OTHER), last_nic=last_nic)
    if not refused:
        check(request, fault)
        return
    with pytest.raises(UsageError, match="h5/0 is the last working NIC of h5"):
        check(request, fault)


def test_a_radius_holds_those_within_it():
    """From a process to the whole fabric."""
    assert BlastRadius.NIC.within(BlastRadius.NIC)
    assert BlastRadius.PROCESS.within(BlastRadius.HOST)
    assert not BlastRadius.FABRIC.within(BlastRadius.SWITCH)


def test_a_host_is_seen_to_go_and_to_come_back():
    """The moment lies between the last answer and the first question without one."""
    gone_s, back_s = time.monotonic() + 0.1, time.monotonic() + 0.3
    host = Host("h5", "198.18.0.5")

    def reach(_):
        return not gone_s <= time.monotonic() < back_s

    gone = controller.wait_gone(host, reach, 5.0)
    assert 0 < gone.time_s - gone.last_s < 0.1
    assert controller.wait_back(host, reach, 5.0) >= gone.time_s + 0.15
    assert controller.wait_gone(host, lambda _: True, 0.05) is None
    assert controller.wait_back(host, lambda _: False, 0.05) is None


def test_an_answer_is_a_connection(monkeypatch):
    """A listening port answers, a closed one does not."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr(controller, "_SSH_PORT", server.getsockname()[1])
        assert controller.answers(Host("h5", "127.0.0.1"))
    assert not controller.answers(Host("h5", "127.0.0.1"))


def test_systemd_stands_behind_our_own_watchdog(tmp_path, monkeypatch):
    """Where systemd runs the host, a timer that heals this very fault is armed before it, and taken away after it."""
    commands = []
    monkeypatch.setattr(fault_session, "_SYSTEMD", tmp_path)
    monkeypatch.setattr(subprocess, "run", lambda argv, **_: commands.append(list(argv)))
    lease = fault_session.lease_of(nic_request("nic.down"))
    healed = threading.Event()
    fault_session.arm(time.monotonic() + 10.0, lease, healed.set).cancel()
    armed, stopped = commands
    unit = f"c4bench-{lease.id.replace('.', '-')}"
    assert armed[0] == "systemd-run"
    assert f"--unit={unit}" in armed
    assert [word for word in armed if word.startswith("--on-active=10.")]
    assert armed[-3:] == ["c4bench.inject", "heal", lease.id]
    assert stopped == ["systemctl", "--quiet", "stop", f"{unit}.timer"]
    assert not healed.is_set()
