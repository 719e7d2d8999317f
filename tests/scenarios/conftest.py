"""What scenarios of several areas ask of the fabric and of C4D."""

import json
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from c4bench import remote
from c4bench.c4d import detectors
from c4bench.c4d.offline import detect
from c4bench.cost.ack_timeout import Nic, detection
from c4bench.doctor.capabilities import State
from c4bench.lab.spec import CONTROL_SOCKET
from c4bench.model.measurement import Clock
from c4bench.model.recording import Evaluated
from c4bench.pytest_plugin.tenancy import TENANCY
from c4bench.record import Ledger, RunDirectory

OPTIONAL = {"hypothesis"}  # packages that only some scenarios need
# Until a job runs or a short one has ended; and for each step of a long one.
READY_S, STEP_S = 60.0, 3.0


class Ports(NamedTuple):
    """The switches' ports between switches, towards hosts, and in ECMP groups.

    `addresses` are those at both ends of each port, and each switch's own; `leading` is the port that sends to an
    address; `nics` are those of each host.
    """

    across: list[str]
    towards: list[str]
    shared: list[str]
    addresses: dict[str, frozenset[str]]
    leading: dict[str, str]
    nics: dict[str, list[str]]


class Retries(NamedTuple):
    """The retries of QPs: those of rxe, or of NICs that make their own of a QP's attributes."""

    as_rxe: bool

    def most_s(self, timeout, retry_cnt):
        """When a NIC has given up a peer that does not answer; where NICs are not rxe's, any of those known."""
        nics = (Nic.RXE,) if self.as_rxe else Nic
        return max(detection(nic, timeout, retry_cnt).most_s for nic in nics)

    def labels(self, timeout, retry_cnt, **patience):
        """Those of a time that waits for retries, at most for `qp_patience_s`.

        By them reports say what hardware would make of a time of rxe.
        """
        if self.as_rxe:
            return {"qp_timeout": timeout, "qp_retry_cnt": retry_cnt, **patience}
        return {"retries": "imitated" if Path(CONTROL_SOCKET).exists() else "of these NICs"}


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    """Skip modules that import a package which is not installed."""
    report = yield
    error = report.call.excinfo and report.call.excinfo.value.__cause__
    if isinstance(error, ModuleNotFoundError) and error.name.partition(".")[0] in OPTIONAL:
        reason = f"Skipped: no-{error.name}: run pip install {error.name}"
        report.outcome, report.longrepr = "skipped", (str(collector.path), 0, reason)
    return report


@pytest.fixture(scope="session", autouse=True)
def _twin_failed(request, pytestconfig):
    """On a lab that stands for a rack, record how many of the scenarios have failed."""
    yield
    tenancy = pytestconfig.stash.get(TENANCY, None)
    in_lab = tenancy is not None and Path(CONTROL_SOCKET).exists()
    if in_lab and any(tenancy.inventory.facts[switch].os for switch in tenancy.inventory.switches):
        ledger = Ledger(RunDirectory(pytestconfig.option.c4_run_dir), "twin")
        session = request.session
        chosen = {"at_most": 0, "clock": Clock.NONE, "scenarios": session.testscollected}
        ledger.measure("twin.failed", session.testsfailed, "1", **chosen)


@pytest.fixture(scope="session")
def ports(inventory, hosts):
    """Every port of every switch, by whose address is at its other end."""
    ours = {nic.address for host in hosts for nic in host.nics}
    found = Ports([], [], [], {}, {}, {host.name: [nic.name for nic in host.nics] for host in hosts})
    for switch in inventory.switches:
        access = inventory.access[switch]
        inside = ["nsenter", f"--net={access.netns}"] if access.netns else []
        with remote.connect(switch, access) as connection:
            asked = (["ip", "-json", what] for what in ("address", "neighbour", "route"))
            addresses, neighbours, routes = (
                json.loads(connection.run([*inside, *words], timeout_s=60.0).stdout) for words in asked
            )
        own = {link["ifname"]: {a["local"] for a in link["addr_info"]} for link in addresses}
        found.addresses[switch] = frozenset().union(*own.values())
        found.shared.extend({f"{switch}/{hop['dev']}" for route in routes for hop in route.get("nexthops", ())})
        for neighbour in neighbours:
            stated = inventory.facts[switch].rates  # without the port of the management network
            if "." not in neighbour["dst"] or (stated and neighbour["dev"] not in stated):
                continue
            name = f"{switch}/{neighbour['dev']}"
            (found.towards if neighbour["dst"] in ours else found.across).append(name)
            found.addresses[name] = frozenset(own[neighbour["dev"]] | {neighbour["dst"]})
            found.leading[neighbour["dst"]] = name
    return found._replace(across=sorted(found.across), towards=sorted(found.towards), shared=sorted(found.shared))


@pytest.fixture(scope="session")
def retries(pytestconfig, hosts):
    """How these hosts' NICs send again what nobody acknowledges: as rxe, or in a way of their own."""
    reports = pytestconfig.stash[TENANCY].reports()
    known = [one for host in hosts for one in reports[host.name].capabilities if one.name == "rdma"]
    return Retries(as_rxe=all(one.state is State.EMULATED for one in known))


@pytest.fixture
def replayed(cluster, pytestconfig):
    """Whether a job's recording, judged again, says what was said of the job live, times and all."""

    def check(job):
        recording = cluster.recording(job)
        until_s = max(record.at_s for record in recording if isinstance(record, Evaluated))
        again = detect(recording, detectors.detector(pytestconfig.option.c4_detector))
        return again == [found for found in cluster.diagnoses(job) if found.named_s <= until_s]

    return check


@pytest.fixture
def soak(atlas, unblamed):  # noqa: ARG001 (planned paths)
    """`unblamed`, on planned paths."""
    return unblamed


@pytest.fixture
def unblamed(cluster, run_directory, measure):
    """Run so many steps of a healthy job, others beside it: C4D may name nothing of any of them.

    `beside` run as long as it does, `visits` one after the other; the recordings of all are kept.
    """

    def end(job):
        found = cluster.diagnoses(job.id)
        run_directory.save_telemetry(job.id, cluster.recording(job.id))
        cluster.stop(job.id)
        return found

    def run(job, visits, steps, *, beside=(), gap_s=0.0, **labels):
        found = []
        running = [cluster.start(each) for each in (job, *beside)]
        try:
            for each in running:
                cluster.results(each, "ready", READY_S)
            for visit in visits:
                time.sleep(gap_s)
                cluster.results(cluster.start(visit), "done", READY_S)
                found += end(visit)
            cluster.results(running[0], "done", steps * STEP_S)
        finally:
            found += [one for each in running for one in end(each.spec)]
        measure("soak.iterations", steps, clock=Clock.NONE, **labels)
        measure("soak.false_alarms", len(found), at_most=0, clock=Clock.NONE, **labels)
        assert not found, [f"{one.job}: {one.syndrome}: {one.component}; {one.evidence}" for one in found]

    return run
