"""Witnesses of faults that never come see nothing: a fault is proven by its effect, not by having been asked for."""

import json
import sys
import time
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from test_catalogue import CATALOGUE, PARAMETERS, of
from test_processes import PASSING, STABLE_S

from c4bench import remote
from c4bench.inject.path_witness import can_see
from c4bench.model.fault import TargetKind
from c4bench.model.measurement import Clock
from c4bench.remote.local import LocalConnection

pytestmark = pytest.mark.needs("disruptive", "root")
ONLOOKER = Path(__file__).with_name("onlooker.py")
ANSWER_WITHIN_S = 60.0
# The faults that are seen by what happens to packets which the NIC itself sends.
BY_RDMA = {"host.data_cut", *(f"nic.{name}" for name in ("blackhole", "corrupt", "delay", "loss", "rate", "reorder"))}
ALL_PARAMETERS = PARAMETERS | PASSING


@pytest.fixture
def watch(inventory, measure):
    """Have the witnesses of these faults look at a target where something else is done, one after the other.

    The planes that they looked at, by fault.
    """

    def look(names, target, variant="the driver does nothing", instead=(), undo=()):
        access, planes = inventory.access[target.host.name], {}
        # A switch on which c4bench is not installed is asked from here.
        python = sys.executable if target.switch else access.python
        with (
            LocalConnection("here") if target.switch else remote.connect(target.host.name, access) as connection,
            closing(connection.start([python, "-c", ONLOOKER.read_text()])) as session,
        ):
            for name in names:
                request = target.request(name, dict(ALL_PARAMETERS.get(name, {})), 30.0, 0.3, last_nic=True)
                asked = {"request": request, "instead": instead, "undo": undo}
                session.write_line(msgspec.json.encode(asked).decode())
                answer = json.loads(session.read_line(ANSWER_WITHIN_S))
                labels = {"fault": name, "witness": CATALOGUE[name].witness, "variant": variant}
                measure("witness.false_seen", float(answer["seen"]), at_most=0, clock=Clock.NONE, **labels)
                planes[name] = answer["plane"]
        return planes

    return look


def test_a_healthy_nic_shows_no_fault(nic_hosts, place, watch):
    """No witness of a NIC fault sees one on a healthy NIC without traffic."""
    watch(of(TargetKind.NIC), place(f"{nic_hosts[0].name}/0"))


def of_port(target):
    """The faults of a switch's port: all that its system has a driver for, where it is asked over SSH."""
    if target.switch is None:
        return set(of(TargetKind.PORT))
    ports = {name for name, spec in CATALOGUE.items() if spec.target is TargetKind.PORT}
    return {name for name in ports if target.switch.system in CATALOGUE[name].drivers}


def test_a_healthy_port_shows_no_fault(switch_names, place, up_and_across, watch):
    """No witness of a link fault sees one at a healthy port of a switch."""
    across, towards = map(place, up_and_across)
    watch(sorted(of_port(across) - {"port.down"}), across)
    watch(["port.down"], towards)
    watch(["switch.down"], place(switch_names[-1]))


def test_a_healthy_host_shows_no_fault(fault_hosts, place, watch):
    """No witness of a host's fault sees one on a healthy host."""
    watch(of(TargetKind.HOST), place(fault_hosts[0].name))


@pytest.mark.nightly
@pytest.mark.needs("agents", hosts=2)
def test_a_healthy_rank_shows_no_fault(job, place, watch, inventory):
    """No witness of a rank's or a GPU's fault sees one on a rank that computes as ever, also where ICMP is lost."""
    time.sleep(STABLE_S)
    victim = job.members[0]
    (nic, *_) = next(host.nics for host in inventory.hosts if host.name == victim.host)
    for instead in ({}, hurts_icmp(nic.netdev)):
        watch(of(TargetKind.PROCESS), place(f"{job.id}:{victim.rank}@{victim.host}"), **instead)
        watch(of(TargetKind.GPU), place(f"{victim.host}/gpu0"), **instead)


def test_what_only_hurts_icmp_is_not_seen(nic_hosts, place, watch):
    """Where only the kernel's echo requests are lost, no witness of a fault of a NIC or a host sees it."""
    hurt = hurts_icmp(nic_hosts[0].nics[0].netdev)
    planes = watch(of(TargetKind.NIC), place(f"{nic_hosts[0].name}/0"), **hurt)
    planes |= watch(of(TargetKind.HOST), place(nic_hosts[0].name), **hurt)
    assert {name for name, plane in planes.items() if plane == "rdma"} == BY_RDMA


def test_what_only_hurts_icmp_at_a_port_is_not_seen(up_and_across, place, watch):
    """Where only echo requests are lost at a switch's port, no witness of the switch's state sees a fault.

    Those of packets are on the path of data (test_path_witnesses.py); without one they say that ICMP is all they saw.
    """
    across, towards = map(place, up_and_across)
    if across.switch:
        pytest.skip(f"agentless: the witness at {across.host.name} reads its settings, and sends no packet")
    asked = {name: across.request(name, {}, 30.0, 0.3, last_nic=True) for name in of_port(across)}
    by_state = {name for name, request in asked.items() if not can_see(CATALOGUE[name], request)}
    watch(sorted(by_state - {"port.down"}), across, **hurts_icmp(across.port, across.netns))
    watch(["port.down"], towards, **hurts_icmp(towards.port, towards.netns))


def test_what_the_hosts_tc_does_to_hardware_is_not_seen(nic_hosts, place, watch, inventory):
    """Where a netem loses all packets of the interface but RDMA's, no witness of a fault of data sees it."""
    nic = nic_hosts[0].nics[0]
    with remote.connect(nic.host, inventory.access[nic.host]) as connection:
        link = f"/sys/class/infiniband/{nic.device}/device/driver"
        driver = connection.run(["readlink", "-f", link], timeout_s=30.0, check=False)  # rxe's is of no driver
    if not driver.stdout.strip().endswith(b"/mlx5_core"):
        pytest.skip("software-nic: the host's tc touches the packets of rxe")
    netem = ["tc", "qdisc", "add", "dev", nic.netdev, "root", "netem", "loss", "100%"]
    undo = ["tc", "qdisc", "del", "dev", nic.netdev, "root"]
    hurt = {"variant": "the host's tc loses all packets", "instead": [netem], "undo": [undo]}
    watch(sorted(BY_RDMA - {"host.data_cut"}), place(f"{nic.host}/0"), **hurt)
    watch(["host.data_cut"], place(nic.host), **hurt)


def hurts_icmp(netdev, netns=None):
    """What is done instead of a fault: the interface loses all ICMP, and nothing else."""
    tc = [*(["nsenter", f"--net={netns}"] if netns else []), "tc"]
    icmp = ("protocol", "ip", "u32", "match", "ip", "protocol", "1", "0xff", "action", "drop")
    hooks = [[*tc, "qdisc", "add", "dev", netdev, "clsact"]]
    hooks += [[*tc, "filter", "add", "dev", netdev, hook, *icmp] for hook in ("ingress", "egress")]
    undo = [*tc, "qdisc", "del", "dev", netdev, "clsact"]
    return {"variant": "only ICMP is hurt", "instead": hooks, "undo": [undo]}
