"""One fault on the host, from the journal entry to the revert.

The order makes it safe. The watchdog starts before the journal has an entry, and the entry, with all that the revert
needs, is written before the host is changed. Whenever the injector dies, either nothing has to be reverted or the
watchdog reverts it.
"""

import contextlib
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

import c4bench
from c4bench.errors import UnhealthyError, UsageError
from c4bench.inject import agentless, controller, gpus, interfaces, protocol, targets
from c4bench.inject.actions import Action, ApplyOnSwitch, Plan, Schedule, attempt, leased
from c4bench.inject.catalogue import Catalogue
from c4bench.inject.detached import detach
from c4bench.inject.interfaces import netns_of
from c4bench.inject.journal import Entry, Journal, Reverted, boot
from c4bench.inject.registry import DRIVERS, WITNESSES, installed
from c4bench.inject.switch_shell import Span, UnreachableError
from c4bench.inject.witness.base import Aftermath, Values, Witness, plane_of
from c4bench.inject.witness.counted import beside
from c4bench.inject.witness.link import running
from c4bench.model.fabric import Nic
from c4bench.model.fault import FaultRequest, FaultSpec, Lease, TargetKind, WitnessReport

_DONE = b"."
_SYSTEMD = Path("/run/systemd/system")
_TIMEOUT_S = 20.0
# A switch that restarts is back within minutes.
_ATTEMPTS, _AGAIN_S = 60, 10.0


class LeaseGuard(Protocol):
    """Reverts the fault at the end of its lease unless cancelled."""

    def cancel(self) -> None:
        """The fault is over."""


def arm(deadline_s: float, lease: Lease, revert: Callable[[], object]) -> LeaseGuard:
    """Start a watchdog process, and on hosts with systemd a timer too, which survives if that process is killed.

    An agentless switch has a timer of its own.
    """
    if lease.request.switch:
        return Watchdog(deadline_s, lambda: _when_reached(revert))
    guards: list[LeaseGuard] = [Watchdog(deadline_s, revert)]
    if _SYSTEMD.exists():
        guards.append(SystemdTimer(deadline_s, lease))
    return LeaseGuards(guards)


def _when_reached(revert: Callable[[], object]) -> None:
    """Revert once the switch answers: what its own timer has done is then known here too."""
    for _ in range(_ATTEMPTS):
        with contextlib.suppress(UnreachableError):
            revert()
            return
        time.sleep(_AGAIN_S)


class LeaseGuards:
    """Several guards, each a backup of the others."""

    def __init__(self, guards: list[LeaseGuard]) -> None:
        self._guards = guards

    def cancel(self) -> None:
        """The fault is over."""
        for guard in self._guards:
            guard.cancel()


class SystemdTimer:
    """A transient timer unit (systemd-run(1)) that heals this fault, half a second after the watchdog."""

    _AFTER_S = 0.5

    def __init__(self, deadline_s: float, lease: Lease) -> None:
        self._unit = f"c4bench-{lease.id.replace('.', '-')}"
        delay_s = max(0.0, deadline_s - time.monotonic()) + self._AFTER_S
        options = (f"--unit={self._unit}", f"--on-active={delay_s:.3f}", "--timer-property=AccuracySec=100ms")
        # The unit does not inherit our environment, and c4bench may be outside the interpreter's own path.
        code = f"--setenv=PYTHONPATH={Path(c4bench.__file__).parents[1]}"
        heal = (sys.executable, "-P", "-m", "c4bench.inject", "heal", lease.id)
        _systemd("systemd-run", "--quiet", "--collect", *options, code, *heal)

    def cancel(self) -> None:
        """Stop the timer; one that has fired no longer exists."""
        _systemd("systemctl", "--quiet", "stop", f"{self._unit}.timer")


def _systemd(*argv: str) -> None:
    """Ask systemd for something. It writes nothing to the caller; the watchdog does without it."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run(argv, check=False, stdin=subprocess.DEVNULL, capture_output=True, timeout=_TIMEOUT_S)


class Watchdog:
    """A detached process that calls `revert` at `deadline_s` (monotonic clock) unless cancelled before.

    It has its own session and none of our files, so it survives a closed SSH session and our death.
    """

    def __init__(self, deadline_s: float, revert: Callable[[], object]) -> None:
        sys.stdout.flush()
        reader, self._writer = os.pipe()
        child = os.fork()
        if child == 0:
            _watch(reader, deadline_s, revert)
        os.close(reader)
        os.waitpid(child, 0)

    def cancel(self) -> None:
        """The fault is over: end without reverting."""
        with contextlib.suppress(BrokenPipeError):  # it has ended already
            os.write(self._writer, _DONE)
        os.close(self._writer)


def _watch(reader: int, deadline_s: float, revert: Callable[[], object]) -> None:
    try:
        os.setsid()
        if os.fork():
            os._exit(0)
        detach(reader)
        if not _cancelled(reader, deadline_s):
            revert()
    finally:
        os._exit(0)


def _cancelled(reader: int, deadline_s: float) -> bool:
    """Wait for the cancellation or the deadline. End of file means that our parent died: the deadline holds."""
    ready, _, _ = select.select([reader], [], [], _left_s(deadline_s))
    if ready and os.read(reader, 1) == _DONE:
        return True
    time.sleep(_left_s(deadline_s))
    return False


def _left_s(deadline_s: float) -> float:
    return max(0.0, deadline_s - time.monotonic())


class FlapScheduler:
    """Starts with the fault in force. Ends after the last period, or when the fault has been reverted.

    If the process dies between two changes, the fault stays as it is until the watchdog reverts it.
    """

    def __init__(self, records: Journal, fault_id: str, plan: Plan, schedule: Schedule) -> None:
        self._records, self._id, self._plan = records, fault_id, plan
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(schedule,), daemon=True)
        self._began_s = time.monotonic()
        self._thread.start()

    def stop(self) -> None:
        """Stop; nothing is changed after this returns."""
        self._stopped.set()
        self._thread.join()

    def _run(self, schedule: Schedule) -> None:
        for number in range(schedule.count):
            began_s = self._began_s + number * schedule.period_s
            if number and not self._perform_at(began_s, self._plan.apply):
                return
            if not self._perform_at(began_s + schedule.duty * schedule.period_s, self._plan.revert):
                return

    def _perform_at(self, at_s: float, actions: tuple[Action, ...]) -> bool:
        """Run the actions at `at_s` (monotonic clock). False if the fault was over by then."""
        if self._stopped.wait(max(0.0, at_s - time.monotonic())):
            return False
        # Under the lock, and only while the journal has the fault: after the revert nothing may be applied again.
        with self._records.lock():
            if self._records.find(self._id) is None:
                return False
            for action in actions:
                attempt(action)  # the revert meets the same error and reports it
        return True


Send = Callable[[protocol.Reply], None]


# Time for the announcement to leave the host before the fault makes it unreachable.
_ANNOUNCE_S = 0.05
_LONGEST_LINE = 64


class FaultOnset(NamedTuple):
    """When the effect began (host's clock): at most `bound_s` before `time_s`."""

    time_s: float
    bound_s: float


class FaultSession:
    """A lease, its watchdog, and for an intermittent fault the thread that applies and reverts it."""

    def __init__(self, records: Journal, lease: Lease, namespaces: Mapping[str, int] = {}) -> None:
        self.lease = lease
        self._namespaces = dict(namespaces)
        self.deadline_s = time.monotonic() + lease.request.lease_s
        self._records = records
        self._watchdog = arm(self.deadline_s, lease, lambda: records.revert(lease.id, "watchdog"))
        self._flapping: FlapScheduler | None = None

    def begin(self, spec: FaultSpec, announce: Callable[[], None] = lambda: None) -> FaultOnset:
        """Apply the fault. Raises UsageError, before any change, when another fault has claimed what it needs.

        `announce` is called after the preparation, before the first change.
        """
        with self._records.lock():
            self._records.refuse_quarantined()
            _revert_expired(self._records)
            plan, listing = _plan(spec, self.lease.request, self._records.entries())
            plan = leased(plan, self.deadline_s)
            refuse_unsafe(spec, self.lease.request, listing, self._records.entries())
            _refuse_overlap(self._records, self.lease.request, plan)
            before_all = self._records.state_before(listing)
            self._records.write(self._entry(spec, plan, before_all))
            commands = [str(action) for action in plan.apply]
            self._records.audit("intent", self.lease, plan=commands, lease_s=self.lease.request.lease_s)
            announce()
            onset = _apply(plan)
            self._records.audit("applied", self.lease, onset_s=onset.time_s)
        if plan.rhythm:
            self._flapping = FlapScheduler(self._records, self.lease.id, plan, plan.rhythm)
        return onset

    def _entry(self, spec: FaultSpec, plan: Plan, listing: dict[str, str]) -> Entry:
        return Entry(self.lease, spec.target, plan, listing, self.deadline_s, boot(), self._namespaces)

    def wait(self, stdin: int) -> str:
        """Wait for a reason to end and return it: `asked`, `closed` (end of input) or `lease`."""
        received = b""
        while (left_s := self.deadline_s - time.monotonic()) > 0:
            if not select.select([stdin], [], [], left_s)[0]:
                break
            try:
                piece = os.read(stdin, 4096)
            except OSError:  # a terminal whose session has ended
                return "closed"
            if not piece:
                return "closed"
            received = received[-_LONGEST_LINE:] + piece
            if f"{protocol.REVERT}\n".encode() in received:
                return "asked"
        return "lease"

    def end(self) -> Reverted:
        """Revert the fault, unless the watchdog or a `heal` has. Does nothing when nothing was applied."""
        if self._flapping:
            self._flapping.stop()
        reverted = self._records.revert(self.lease.id, "injector")
        self._watchdog.cancel()
        return reverted or Reverted(self.lease.id, "another", time.time())


def hold(
    request: FaultRequest,
    catalogue: Catalogue,
    records: Journal,
    stdin: int,
    send: Send,
    namespaces: Mapping[str, int] = {},
) -> None:
    """Apply the fault and send `Applied`, wait for its end, revert it and send `Healed`.

    `namespaces` are the inodes of the network namespaces it acts in, by path. Raises C4Error when the fault cannot be
    applied; the host is then unchanged.
    """
    spec, request = catalogue.resolve(request)
    if spec.witness == controller.ABSENCE:
        _hold_absent(spec, FaultSession(records, lease_of(request), namespaces), stdin, send)
        return
    records.refuse_quarantined()
    witness = beside(witness_of(spec, request), request)
    before = witness.before()
    session = FaultSession(records, lease_of(request), namespaces)
    try:
        onset = session.begin(spec)
        send(_applied(spec, session.lease, onset, _observe(witness, before, onset)))
        reason = session.wait(stdin)
    finally:
        reverted = session.end()
    send(_healed(reverted, reason, witness.after()))


def witness_of(spec: FaultSpec, request: FaultRequest) -> Witness:
    """The witness of a fault: where the switch itself is asked, it runs here, and else on the target."""
    if request.switch:
        return agentless.SwitchWitness(request, spec.witness)
    return installed(WITNESSES, "witness", spec.witness)(request)


def _hold_absent(spec: FaultSpec, session: FaultSession, stdin: int, send: Send) -> None:
    """Announce the fault, then apply it: after that no message may arrive, and only the lease ends it."""

    def announce() -> None:
        send(_leaving(spec, session.lease))
        time.sleep(_ANNOUNCE_S)

    try:
        session.begin(spec, announce)
        reason = session.wait(stdin)
    finally:
        reverted = session.end()
    send(_healed(reverted, reason, Aftermath({}, None)))


def lease_of(request: FaultRequest) -> Lease:
    """A lease that begins now. Its id is unique, so that a late watchdog cannot revert another fault."""
    now_ns = time.time_ns()
    return Lease(f"{request.fault}-{now_ns}-{os.getpid()}", request, now_ns / 1e9, now_ns / 1e9 + request.lease_s)


def _revert_expired(records: Journal) -> None:
    """Revert faults whose lease has expired: their watchdog was killed, or the host has restarted."""
    for entry in records.entries():
        if entry.over:
            records.undo(entry.lease.id, "sweep")


def _plan(spec: FaultSpec, request: FaultRequest, in_force: list[Entry]) -> tuple[Plan, dict[str, str]]:
    """The plan and the target's listing; an error names a fault in force that may be its cause."""
    try:
        return plan(spec, request)
    except UnhealthyError as error:
        if not in_force:
            raise
        raise UnhealthyError(f"{error}; {in_force[0].lease.id} is in force there; end that fault first") from None


def _refuse_overlap(records: Journal, request: FaultRequest, plan: Plan) -> None:
    for entry in records.entries():
        common = set(plan.claims) & set(entry.plan.claims)
        if common:
            raise UsageError(
                f"{request.fault} needs the {min(common)}, which {entry.lease.id} has claimed; end that fault first"
            )


def _apply(plan: Plan) -> FaultOnset:
    split = len(plan.apply) - plan.sudden
    for action in plan.apply[:split]:
        action.perform()
    spans = list[Span]()
    before_s = time.time()
    for action in plan.apply[split:]:
        if isinstance(action, ApplyOnSwitch):
            spans.append(action.timed())
        else:
            action.perform()
    after_s = time.time()
    if spans:  # a switch knows better than we do
        before_s, after_s = min(span.began_s for span in spans), max(span.ended_s for span in spans)
    return FaultOnset(after_s, after_s - before_s)


def _observe(witness: Witness, before: Values, onset: FaultOnset) -> WitnessReport:
    evidence = witness.during(onset.time_s)
    seen = evidence.observed_s is not None
    return WitnessReport(seen, evidence.observed_s, before, evidence.values, plane_of(witness))


def _applied(spec: FaultSpec, lease: Lease, onset: FaultOnset, witnessed: WitnessReport) -> protocol.Applied:
    return protocol.Applied(
        id=lease.id,
        fault=spec.name,
        target=lease.request.expected_component(spec.verdict),
        syndrome=spec.verdict.syndrome if spec.verdict else None,
        onset_s=onset.time_s,
        onset_bound_s=onset.bound_s,
        expires_s=lease.expires_s,
        witness=witnessed,
    )


def _leaving(spec: FaultSpec, lease: Lease) -> protocol.Leaving:
    return protocol.Leaving(
        id=lease.id,
        fault=spec.name,
        target=lease.request.expected_component(spec.verdict),
        syndrome=spec.verdict.syndrome if spec.verdict else None,
        leaving_s=time.time(),
        expires_s=lease.expires_s,
    )


def _healed(reverted: Reverted, reason: str, aftermath: Aftermath) -> protocol.Healed:
    return protocol.Healed(
        id=reverted.id,
        reason=reason,
        by=reverted.by,
        healed_s=reverted.time_s,
        recovered=aftermath.recovered,
        after=aftermath.values,
        residue=reverted.residue,
        problems=reverted.problems,
    )


_INTERFACES = frozenset({TargetKind.NIC, TargetKind.PORT})


def refuse_unsafe(
    spec: FaultSpec, request: FaultRequest, listing: Mapping[str, str], in_force: Iterable[Entry]
) -> None:
    """Raises UsageError for a fault on the interface of our own session, or on the last working NIC.

    `found` is the target's listing, `in_force` are the host's present faults.
    """
    if spec.target in _INTERFACES and request.switch is None:  # whose driver has refused it
        _refuse_management(request, listing)
    if spec.target is TargetKind.NIC and spec.severs and not request.last_nic:
        _refuse_last(request, in_force)


def _refuse_management(request: FaultRequest, listing: Mapping[str, str]) -> None:
    interface = request.interface
    if targets.management_interface(netns_of(interface)) == interface.netdev:
        raise UsageError(
            f"{request.where} carries the default route of {request.host}; name another, or use host.management_cut"
        )
    ours = (*os.environ.get("SSH_CONNECTION", "").split(), "", "", "")[2]
    if ours and any(f'"local": "{ours}"' in text for text in listing.values()):
        raise UsageError(f"{request.where} carries your own session ({ours}); name another NIC")


def _refuse_last(request: FaultRequest, in_force: Iterable[Entry]) -> None:
    hit = {entry.lease.request.nic for entry in in_force} | {request.nic}
    others: list[Nic] = [nic for nic in request.nics if nic not in hit]
    if not running(others):
        raise UsageError(f"{request.where} is the last working NIC of {request.host}; add --last-nic to allow that")


def plan(spec: FaultSpec, request: FaultRequest) -> tuple[Plan, dict[str, str]]:
    """The plan, and the listing of the target's state before it (empty for a process).

    Raises UsageError when the target does not exist, UnhealthyError when the fault has no driver for this hardware.
    """
    driver = driver_for(spec, request)
    target = targets.examine(spec.target, request)
    return installed(DRIVERS, "driver", driver)(request, target), target.listing


def planned(spec: FaultSpec, request: FaultRequest) -> protocol.Planned:
    """The plan for people, with the target's kind of hardware. Raises as `plan`."""
    made, _ = plan(spec, request)
    apply, revert = (tuple(map(str, actions)) for actions in (made.apply, made.revert))
    return protocol.Planned(apply, revert, made.rhythm, hardware_of(spec, request))


def driver_for(spec: FaultSpec, request: FaultRequest) -> str:
    """The name of the driver for the target's hardware. Raises UnhealthyError when the fault has none for it."""
    hardware = hardware_of(spec, request)
    driver = spec.drivers.get(hardware)
    if driver is None and hardware in spec.no_driver:
        raise UnhealthyError(f"{request.where} cannot have {spec.name}: {spec.no_driver[hardware]}")
    if driver is None:
        supported = ", ".join(sorted(spec.drivers)) or "nothing by itself"
        raise UnhealthyError(
            f"{spec.name} has no driver for {hardware} such as {request.where}; it can be done on: {supported}"
        )
    return driver


def hardware_of(spec: FaultSpec, request: FaultRequest) -> str:
    """The target's kind of hardware, as the keys of `drivers` in the catalogue name it.

    For a fault of a whole host whose drivers depend on its NICs, it is that of the NICs, and of several kinds the first
    without a driver.
    """
    if request.switch:
        return agentless.system_of(request).name
    match spec.target:
        case TargetKind.NIC | TargetKind.PORT:
            return interfaces.hardware(request.interface)
        case TargetKind.SWITCH:
            return interfaces.switch_system()
        case TargetKind.GPU:
            return gpus.hardware()
    if "linux" in spec.drivers:
        return "linux"
    kinds = [interfaces.hardware(nic) for nic in request.nics] or ["ethernet"]
    return next((kind for kind in kinds if kind not in spec.drivers), kinds[0])
