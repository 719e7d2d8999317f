"""Faults of switches' ports, and of what a NIC receives, are seen by queue pairs whose packets cross them."""

import json
import subprocess
import sys
import time

import pytest
from test_catalogue import BY_SWITCH
from test_witnesses import hurts_icmp

from c4bench import remote
from c4bench.control.state.store import SavedPaths
from c4bench.errors import C4Error
from c4bench.inject import catalogue, path_witness
from c4bench.model.fault import WitnessReport
from c4bench.model.measurement import Clock
from c4bench.pytest_plugin.scope import no_fault

CATALOGUE = catalogue.load()
# From their atlas on, jobs of the same session are planned by it: none but a night's are behind these.
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.needs("disruptive", "root", hosts=2),
    pytest.mark.usefixtures("rdma_hosts"),
]
OF_PORTS = {
    "link.loss": {"probability": 0.02, "direction": "both"},
    "link.blackhole": {"direction": "rx"},
    "link.rate": {"direction": "tx", "fraction": 0.25},
    "link.acks_lost": {},
    "link.ecmp_member": {},
}
OF_NICS = {"nic.rate": {"direction": "rx", "fraction": 0.25}}
FAULTS = [*OF_PORTS, *OF_NICS]
NOTHING = WitnessReport(False, None, {}, {})


@pytest.fixture
def where(up_and_across, nic_hosts, place, path_injector):
    """The place of a fault, and its parameters; skips what the place cannot have."""

    def found(name):
        target = place(up_and_across[0] if name in OF_PORTS else f"{nic_hosts[0].name}/0")
        parameters = (OF_PORTS | OF_NICS)[name] | (BY_SWITCH.get(name, {}) if target.switch else {})
        try:
            path_injector.plan(name, target, parameters)
        except C4Error as error:
            pytest.skip(no_fault({name: str(error)}))
        return target, parameters

    return found


@pytest.mark.parametrize("name", FAULTS)
def test_data_feels_the_fault(name, where, path_injector, measure, healed):
    """The fault is applied and seen on the path of RDMA, and the path is itself again when it ends."""
    target, parameters = where(name)
    with path_injector.apply_at(name, target, parameters) as fault:
        seen = fault.witness.seen and fault.witness.plane == "rdma"
        measure("faults.witnessed_fraction", float(seen), equals=1, clock=Clock.NONE, fault=name)
    assert healed()["recovered"] is True


def test_data_feels_a_fault_by_hand(atlas, cluster, where, up_and_across, inventory, tmp_path, measure):  # noqa: ARG001
    """`c4bench fault` sees a black hole on a path that was saved before."""
    name = "link.blackhole"
    where(name)
    SavedPaths(tmp_path, inventory.hosts).save(cluster.known_paths())
    words = ["apply", name, up_and_across[0], "direction=rx", "--lease=10s", "--within=fabric", "--json"]
    files = [f"--hosts={inventory.path}", f"--paths={tmp_path}", f"--history={tmp_path}/faults.jsonl"]
    command = [sys.executable, "-m", "c4bench.cli.main", "fault", *words, *files]
    done = subprocess.run(command, capture_output=True, check=False, text=True)
    assert done.returncode == 0, done.stderr
    witness = json.loads(done.stdout)["witness"]
    seen = witness["seen"] and witness["plane"] == "rdma" and witness["during"]["path_lost"] > 0
    measure("faults.witnessed_fraction", float(seen), equals=1, clock=Clock.NONE, fault=name, by="hand")


@pytest.fixture
def falsely_seen(inventory, crossings, where):
    """Whether the witness sees a fault on the path of RDMA where something else is done in its place."""

    def connect(host):
        return remote.connect(host, inventory.access[host])

    def look(name, instead=(), undo=()):
        target, parameters = where(name)
        spec, request = CATALOGUE.resolve(target.request(name, dict(parameters), 30.0, 0.3, last_nic=True))
        watch = path_witness.start(spec, request, crossings, connect, lambda host: inventory.access[host].python)
        assert watch, "no packet is known to cross the port"
        crossing = path_witness.received(request) if request.nic else crossings(request)
        with connect(crossing.source.host) as connection:
            try:
                for argv in instead(crossing.source.netdev) if instead else ():
                    connection.run(argv, timeout_s=30.0)
                report = watch.during(time.time(), NOTHING)
            finally:
                for argv in undo(crossing.source.netdev) if undo else ():
                    connection.run(argv, timeout_s=30.0)
                watch.close()
        assert report.plane == "rdma"
        return report.seen

    return look


@pytest.mark.parametrize("name", FAULTS)
def test_what_does_not_happen_to_data_is_not_seen(name, falsely_seen, measure):
    """Neither where the driver does nothing, nor where the kernel's echo requests alone are lost."""
    variants = {
        "the driver does nothing": falsely_seen(name),
        "only ICMP is hurt": falsely_seen(
            name, lambda netdev: hurts_icmp(netdev)["instead"], lambda netdev: hurts_icmp(netdev)["undo"]
        ),
    }
    for variant, seen in variants.items():
        labels = {"fault": name, "witness": "path", "variant": variant}
        measure("witness.false_seen", float(seen), at_most=0, clock=Clock.NONE, **labels)
    assert not any(variants.values())
