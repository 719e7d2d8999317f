"""What a scenario may ask for. None of it tells which backend it is on; capabilities are asked of the hosts."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from c4bench import remote
from c4bench.attach.site import Site
from c4bench.errors import PathsRefusedError, UnhealthyError, UsageError
from c4bench.inject import catalogue, places
from c4bench.inject.controller import Injector
from c4bench.inject.crossings import KnownCrossings
from c4bench.inject.feasibility import Feasibility, place_name
from c4bench.inject.places import Place
from c4bench.inject.protocol import Applied as Fault
from c4bench.inventory import Inventory, select
from c4bench.model.diagnosis import Component, Diagnosis, Syndrome
from c4bench.model.fabric import Host
from c4bench.model.measurement import Clock, Measurement
from c4bench.model.steering import Policy
from c4bench.pytest_plugin.scope import needs, no_fault
from c4bench.pytest_plugin.tenancy import TENANCY
from c4bench.pytest_plugin.verdicts import LEDGER, scenario_name
from c4bench.record import Ledger, RunDirectory
from c4bench.record.artefacts import Faults, FaultTimeline
from c4bench.record.run import slug
from c4bench.remote.clock import ClockOffset
from c4bench.report.headlines import format_labels
from c4bench.wire.messages import JobSpec
from c4bench.workload.jobs import job as job_of
from c4bench.workload.jobs import place, training_job

# A run imports the master, which takes longer than all else here, once a scenario asks for it.
if TYPE_CHECKING:
    from c4bench.c4p.knowledge.atlas import Atlas
    from c4bench.control.cluster import C4D, Cluster, SteeredJob
    from c4bench.control.paths.switches import Switches

_AGENTS_WITHIN_S = 10.0
# How often the live page learns what switches count.
_COUNT_EVERY_S = 2.0
_RESUMED_WITHIN_S = 120.0

_C4D = pytest.StashKey["C4D"]()
_INJECTED = pytest.StashKey[list[Fault]]()
Measure = Callable[..., Measurement]
Inject = Callable[..., AbstractContextManager[Fault]]


class Clocks:
    """The clocks of reserved hosts, as last read; a host that is not among them shares ours, as all of a lab do."""

    def __init__(self, known: Mapping[str, ClockOffset]) -> None:
        self._known = known

    def error_s(self, *hosts: str) -> float:
        """How much a time of any of these hosts, put on our clock, may be off."""
        return max((self._known.get(host, ClockOffset()).error_s for host in hosts), default=0.0)

    def ours(self, host: str, time_s: float) -> float:
        """A time that this host's clock told, on our clock."""
        return self._known.get(host, ClockOffset()).ours(time_s)

    @contextmanager
    def translated(self, fault: AbstractContextManager[Fault], host: str) -> Iterator[Fault]:
        """The fault with its times on our clock."""
        clock = self._known.get(host, ClockOffset())
        with fault as applied:
            seen = applied.witness.observed_s
            witness = msgspec.structs.replace(applied.witness, observed_s=None if seen is None else clock.ours(seen))
            onset_s, expires_s = clock.ours(applied.onset_s), clock.ours(applied.expires_s)
            times = {"onset_s": onset_s, "expires_s": expires_s, "clock_error_s": clock.error_s}
            yield msgspec.structs.replace(applied, witness=witness, **times)


@pytest.fixture(scope="session")
def inventory(pytestconfig: pytest.Config) -> Inventory:
    """The inventory given by `--hosts`; a broken host is not in it, where the run may go on without."""
    tenancy = pytestconfig.stash[TENANCY]
    if tenancy.refusal:
        pytest.skip(tenancy.refusal)
    return tenancy.inventory


@pytest.fixture(scope="session")
def hosts(inventory: Inventory) -> tuple[Host, ...]:
    """Every host of the inventory."""
    return inventory.hosts


@pytest.fixture(scope="session")
def run_directory(pytestconfig: pytest.Config) -> RunDirectory:
    """Where this run writes."""
    return RunDirectory(pytestconfig.option.c4_run_dir)


@pytest.fixture(scope="session")
def trust(pytestconfig: pytest.Config) -> Path:
    """The certificates of this fabric's master and agents."""
    directory: Path | None = pytestconfig.option.c4_trust
    return directory or Path.home() / ".config/c4bench/trust"


@pytest.fixture(scope="session")
def cluster(
    pytestconfig: pytest.Config,
    inventory: Inventory,
    hosts: tuple[Host, ...],
    trust: Path,
    switches: "Switches",
) -> "Iterator[Cluster]":
    """The hosts' agents, connected to a master that lives as long as the session."""
    from c4bench.control.cluster import Cluster  # noqa: PLC0415

    if not any(host.nics for host in hosts):
        pytest.skip(f"no-rdma: no RDMA device on any host of {inventory.path.name} (c4.nics is empty)")
    if not (trust / "ca.pem").exists():
        pytest.skip(f"no-agents: no certificates in {trust}; deploy first (playbooks/deploy.yml), or give --c4-trust")
    address, _, port = pytestconfig.option.c4_listen.rpartition(":")
    with Cluster(hosts, trust, address, int(port), pytestconfig.option.c4_detector, inventory.hash) as cluster:
        if pytestconfig.option.c4_page:
            from c4bench.live.feed import keep_state  # noqa: PLC0415  (few runs have a page)

            cluster.run_beside(keep_state(cluster.parts, pytestconfig.option.c4_run_dir))
            if switches.any:
                cluster.run_beside(cluster.parts.paths.counted.watch(switches.ports, _COUNT_EVERY_S))
        yield cluster


@pytest.fixture
def rdma_hosts(request: pytest.FixtureRequest, hosts: tuple[Host, ...], cluster: "Cluster") -> tuple[Host, ...]:
    """The hosts whose agents can open an RDMA device; as many as the scenario's `needs(hosts=N)` says, or a skip."""
    capabilities, needed = needs(request.node)
    needed = needed or 2
    try:
        answers = cluster.wait_hosts([host.name for host in hosts], _AGENTS_WITHIN_S)
    except UnhealthyError as error:
        pytest.skip(f"no-agents: {error}")
    capable = request.config.stash[TENANCY].capable(capabilities)
    usable = tuple(host for host in hosts if not answers[host.name].rdma and host.nics and host.name in capable)
    if len(usable) < needed:
        reasons = {host.name: answers[host.name].rdma or ("" if host.nics else "c4.nics is empty") for host in hosts}
        problem = next((f"{name}: {reason}" for name, reason in reasons.items() if reason), "too few hosts")
        pytest.skip(f"no-rdma: {len(usable)} of {needed} hosts have RDMA ({problem})")
    return usable


@pytest.fixture
def measure(request: pytest.FixtureRequest, pytestconfig: pytest.Config, run_directory: RunDirectory) -> Measure:
    """Record a measurement of this scenario: `measure("alarm_s", 0.4, unit="s", at_most=2.0, host="h2")`."""
    ledger = Ledger(run_directory, scenario_name(request.node))
    request.node.stash[LEDGER] = ledger
    default = Clock.VIRTUAL if pytestconfig.option.c4_time == "virtual" else Clock.MACHINE

    def record(name: str, value: float, *, unit: str = "", clock: Clock = default, **rest: float | str) -> Measurement:
        taken = ledger.measure(name, value, unit, clock=clock, **rest)  # type: ignore[arg-type]
        labels = format_labels(taken)
        request.node.user_properties.append((f"{taken.name} ({labels})" if labels else taken.name, taken.value))
        return taken

    return record


@pytest.fixture
def save(request: pytest.FixtureRequest, measure: Measure) -> Callable[[str, object], None]:  # noqa: ARG001
    """Save an artefact of this scenario for the report."""
    ledger: Ledger = request.node.stash[LEDGER]
    return ledger.save


@pytest.fixture(scope="session")
def atlas(cluster: "Cluster", hosts: tuple[Host, ...], switches: "Switches") -> "Atlas":
    """The fabric's paths, learnt by probing; from here on C4P plans with it."""
    cluster.wait_hosts([host.name for host in hosts], _AGENTS_WITHIN_S)
    try:
        return cluster.learn_paths(read=switches.ports if switches.any else None)
    except PathsRefusedError as error:
        pytest.skip(f"no-paths: {error}")


@pytest.fixture(scope="session")
def planned(cluster: "Cluster", hosts: tuple[Host, ...], switches: "Switches") -> None:
    """From here on C4P plans, and learns the paths of two NICs when a flow first asks for one."""
    cluster.wait_hosts([host.name for host in hosts], _AGENTS_WITHIN_S)
    cluster.plan_paths(switches.ports if switches.any else None)


@pytest.fixture(scope="session")
def switches(inventory: Inventory) -> "Switches":
    """The inventory's switches and their port counters; `.any` is false where there are none."""
    from c4bench.control.paths.switches import Switches  # noqa: PLC0415

    return Switches(inventory, lambda switch: remote.connect(switch, inventory.access[switch]))


@pytest.fixture(scope="session")
def clocks(pytestconfig: pytest.Config) -> Clocks:
    """The hosts' clocks against ours: `measure(..., plus_minus=clocks.error_s("h5"))`."""
    return Clocks(pytestconfig.stash[TENANCY].clocks)


@pytest.fixture
def crossings(atlas: "Atlas", inventory: Inventory, switches: "Switches") -> KnownCrossings:
    """Which packets of hosts cross a switch's port, for witnesses on the path of the data."""
    ports = switches.ports() if switches.any else {}
    return KnownCrossings(atlas, inventory.graph, ports, inventory.hosts)


@pytest.fixture
def inject(request: pytest.FixtureRequest, inventory: Inventory, run_directory: RunDirectory, clocks: Clocks) -> Inject:
    """Break something, bounded and witnessed, for as long as a `with` block takes; its times are on our clock.

    A scenario with `c4d` fails if C4D has named something in its job before the first fault. It is skipped where the
    driver says that this place cannot have the fault.

    Where is said in words, `inject("link.down", at="leaf0/up1")`, or in parts, `inject("nic.down", host="h5", nic=0)`.
    A scenario with `atlas` sees faults of switches that are reached over SSH on the path of the data, where these say
    nothing of packets.
    """
    agentless = any(inventory.facts[switch].os for switch in inventory.switches)
    known = agentless and "atlas" in request.fixturenames
    injector = Injector(
        connect=lambda host: remote.connect(host, inventory.access[host]),
        python=lambda host: inventory.access[host].python,
        record=run_directory,
        hosts=inventory.hosts,
        crossings=request.getfixturevalue("crossings") if known else None,
    )

    def skip_impossible(name: str, place: Place, parameters: Mapping[str, Any]) -> None:
        if why := obstacle(injector, request.config.stash[TENANCY].faults(), name, place, parameters):
            pytest.skip(no_fault({name: f"{place_name(place)}: {why}"}))

    def apply(
        name: str,
        *,
        at: str = "",
        host: str = "",
        **rest: Any,  # noqa: ANN401  (as the fault has)
    ) -> AbstractContextManager[Fault]:
        if bool(at) == bool(host):
            raise UsageError(f"inject({name!r}) needs one place: at='leaf0/up1' in words, or host='h5' and its parts")
        if host:
            chosen = select(inventory, host)[0]
            nic = None if rest.get("nic") is None else places.nic(chosen, rest["nic"])
            skip_impossible(name, Place(chosen, nic), {} if nic is None else _parameters(name, rest))
            return _watched(request.node, clocks.translated(injector.apply(name, chosen, **rest), host))
        times = {limit: rest.pop(limit) for limit in ("lease_s", "witness_s") if limit in rest}
        target = places.parse(at, inventory)
        skip_impossible(name, target, {} if target.job else rest)
        applied = clocks.translated(injector.apply_at(name, target, rest, **times), target.host.name)
        return _watched(request.node, applied)

    return apply


def obstacle(injector: Injector, known: Feasibility, name: str, place: Place, parameters: Mapping[str, Any]) -> str:
    """Why the place cannot have the fault, as planned for the run, or now for these parameters; "" where it can."""
    why = known.obstacle_at(name, place_name(place))
    return injector.obstacle(name, place, parameters) if known.planned and parameters and not why else why


def _parameters(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of the fault among the arguments; others name its place, or say for how long it lasts."""
    known = catalogue.load().find(name).parameters
    return {key: value for key, value in given.items() if key in known}


@pytest.fixture(scope="session")
def possible_faults(pytestconfig: pytest.Config) -> Feasibility:
    """Which faults these hosts and switches can have, as their drivers have planned them."""
    return pytestconfig.stash[TENANCY].faults()


@contextmanager
def _watched(node: pytest.Item, fault: AbstractContextManager[Fault]) -> Iterator[Fault]:
    """The fault, about which C4D, if the scenario has it, is asked from now on."""
    c4d = node.stash.get(_C4D, None)
    with fault as applied:
        node.stash.setdefault(_INJECTED, []).append(applied)
        if c4d:
            c4d.expect(applied)
        yield applied
    if c4d:
        c4d.check_calm()


@pytest.fixture
def job(
    request: pytest.FixtureRequest, cluster: "Cluster", rdma_hosts: tuple[Host, ...], run_directory: RunDirectory
) -> Iterator[JobSpec]:
    """A training job over all hosts whose traffic can tell causes apart: compute, all-reduce, all-to-all."""
    spec = training_job(request.node.name, rdma_hosts, seed=request.config.option.c4_seed)
    running = cluster.start(spec)
    try:
        cluster.results(running, "ready", 60.0)
        yield spec
    finally:
        run_directory.save_telemetry(spec.id, cluster.recording(spec.id))
        cluster.stop(spec.id)


@pytest.fixture
def c4d(
    request: pytest.FixtureRequest, cluster: "Cluster", job: JobSpec, run_directory: RunDirectory
) -> "Iterator[C4D]":
    """What C4D says about the job: `c4d.wait(timeout_s=10)`, in a fault's block about this fault.

    The report shows the timelines of the scenario's faults, if the scenario itself has saved none.
    """
    from c4bench.control.cluster import C4D  # noqa: PLC0415

    found = request.node.stash[_C4D] = C4D(cluster, job)
    yield found
    name = f"faults/{slug(scenario_name(request.node))}"
    injected = request.node.stash.get(_INJECTED, [])
    if injected and run_directory.load(name, Faults) is None:
        run_directory.save(name, _timelines(injected, found.all(), found.link_names))


@pytest.fixture
def shared(request: pytest.FixtureRequest, inventory: Inventory, hosts: tuple[Host, ...]) -> Path:
    """A folder of this scenario's own on storage that all hosts share, and this machine with them."""
    named = {inventory.access[host.name].shared for host in hosts}
    (folder,) = named if len(named) == 1 else ("",)
    if not folder or not Path(folder).is_dir():
        pytest.skip("no-shared-storage: hosts name no folder (c4.shared) that they share with this machine")
    own: str = request.node.name
    return Path(folder) / own


@pytest.fixture
def program(request: pytest.FixtureRequest, inventory: Inventory, run_directory: RunDirectory) -> Iterator[Site]:
    """Start programs of others: `program("mpirun ./ring", hosts=rdma_hosts).wait(60.0)`, as `attach.site.Site` says.

    They are ended after the scenario, whatever has happened; what they have printed is in the run directory's
    `programs`.
    """
    with Site(inventory.access, slug(scenario_name(request.node)), run_directory.path / "programs") as site:
        yield site


@pytest.fixture
def steer(
    request: pytest.FixtureRequest,
    cluster: "Cluster",
    rdma_hosts: tuple[Host, ...],
    shared: Path,
    run_directory: RunDirectory,
) -> "Iterator[Callable[..., SteeredJob]]":
    """Start a job that learns and keeps checkpoints: `steer(Policy(hang=Action.RESTART), spares=1)`.

    The last `spares` hosts stand by; `ranks` is how many of the others have a rank, all by default; `backwards` puts
    them on the same hosts in the opposite order. Whatever else is given goes to the program (`workload.learning`).
    Returns once the job trains; afterwards hosts taken out for its sake are put back.
    """
    from c4bench.control.cluster import SteeredJob  # noqa: PLC0415

    started: list[SteeredJob] = []

    def start(
        policy: Policy, *, spares: int = 1, ranks: int = 0, backwards: bool = False, **parameters: object
    ) -> "SteeredJob":
        cut = len(rdma_hosts) - spares
        used = place(rdma_hosts[: ranks or cut])
        name = f"{request.node.name}{len(started) or ''}"
        folder = parameters.pop("checkpoints", str(shared / name))
        seed = request.config.option.c4_seed
        spec = job_of(name, "learning", used[::-1] if backwards else used, seed=seed, checkpoints=folder, **parameters)
        running = cluster.start(spec, policy, rdma_hosts[cut:])
        started.append(SteeredJob(cluster, spec))
        cluster.results(running, "resumed", _RESUMED_WITHIN_S)
        return started[-1]

    yield start
    for job in started:
        for attempt, recording in cluster.recordings(job.spec.id).items():
            run_directory.save_telemetry(attempt, recording)
        run_directory.save(f"incidents/{slug(job.spec.id)}", job.incidents())
        cluster.stop(job.spec.id)
        cluster.put_back(job.spec.id)


def _timelines(faults: Sequence[Fault], diagnoses: Iterable[Diagnosis], links: Mapping[str, str]) -> Faults:
    """One timeline for each fault that is to be diagnosed; a diagnosis is about the newest fault before its alarm.

    `links` has the names of links by address.
    """
    found = tuple(diagnoses)
    onsets_s = [fault.onset_s - fault.onset_bound_s - fault.clock_error_s for fault in faults]
    drawn = []
    for fault, (since_s, until_s) in zip(faults, pairwise([*onsets_s, math.inf]), strict=True):
        if fault.target is not None and fault.syndrome is not None:
            about = [one for one in found if since_s <= one.alarmed_s < until_s]
            drawn.append(_timeline(fault, fault.target, fault.syndrome, about, links))
    return Faults(tuple(drawn))


def _timeline(
    fault: Fault, target: Component, expected: Syndrome, about: Sequence[Diagnosis], links: Mapping[str, str]
) -> FaultTimeline:
    """The fault with the diagnosis that is right, else with the first one."""
    right = next((one for one in about if (one.syndrome, one.component) == (expected, target)), None)
    shown = right or next(iter(about), None)
    return FaultTimeline(
        name=fault.fault,
        target=target.named(links),
        expected=expected,
        onset_s=fault.onset_s,
        observed_s=fault.observed_s,
        alarmed_s=shown.alarmed_s if shown else None,
        named_s=shown.named_s if shown else None,
        diagnosis=f"{shown.syndrome}: {shown.component.named(links)}" if shown else "",
        correct=right is not None,
    )
