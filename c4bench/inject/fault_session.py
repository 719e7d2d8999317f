"""One fault on the host, from the journal entry to the revert.

The order makes it safe. The watchdog starts before the journal has an entry, and the entry, with all that the revert
needs, is written before the host is changed. Whenever the injector dies, either nothing has to be reverted or the
watchdog reverts it.
"""

import os
import select
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from c4bench.errors import UnhealthyError, UsageError
from c4bench.inject import host_absence, lease_guards, planning, protocol, safety
from c4bench.inject.actions import Plan
from c4bench.inject.catalogue import Catalogue
from c4bench.inject.flap_scheduler import FlapScheduler
from c4bench.inject.journal import Journal
from c4bench.inject.journal_entries import Entry, Reverted, boot
from c4bench.inject.registry import WITNESSES, installed
from c4bench.inject.witness.base import Aftermath, Values, Witness
from c4bench.model.fault import FaultRequest, FaultSpec, Lease, WitnessReport

Send = Callable[[protocol.Reply], None]


# Time for the announcement to leave the host before the fault makes it unreachable.
_ANNOUNCE_S = 0.05
_LONGEST_LINE = 64


class Onset(NamedTuple):
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
        self._watchdog = lease_guards.arm(self.deadline_s, lease, lambda: records.revert(lease.id, "watchdog"))
        self._flapping: FlapScheduler | None = None

    def begin(self, spec: FaultSpec, announce: Callable[[], None] = lambda: None) -> Onset:
        """Apply the fault. Raises UsageError, before any change, when another fault has claimed what it needs.

        `announce` is called after the preparation, before the first change.
        """
        with self._records.lock():
            self._records.refuse_quarantined()
            _revert_expired(self._records)
            plan, listing = _plan(spec, self.lease.request, self._records.entries())
            safety.check(spec, self.lease.request, listing, self._records.entries())
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
    if spec.witness == host_absence.ABSENCE:
        _hold_absent(spec, FaultSession(records, lease_of(request), namespaces), stdin, send)
        return
    records.refuse_quarantined()
    witness = installed(WITNESSES, "witness", spec.witness)(request)
    before = witness.before()
    session = FaultSession(records, lease_of(request), namespaces)
    try:
        onset = session.begin(spec)
        send(_applied(spec, session.lease, onset, _observe(witness, before, onset)))
        reason = session.wait(stdin)
    finally:
        reverted = session.end()
    send(_healed(reverted, reason, witness.after()))


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
        if not entry.in_force or entry.deadline_s < time.monotonic():
            records.undo(entry.lease.id, "sweep")


def _plan(spec: FaultSpec, request: FaultRequest, in_force: list[Entry]) -> tuple[Plan, dict[str, str]]:
    """The plan and the target's listing; an error names a fault in force that may be its cause."""
    try:
        return planning.plan(spec, request)
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


def _apply(plan: Plan) -> Onset:
    split = len(plan.apply) - plan.sudden
    for action in plan.apply[:split]:
        action.perform()
    before_s = time.time()
    for action in plan.apply[split:]:
        action.perform()
    after_s = time.time()
    return Onset(after_s, after_s - before_s)


def _observe(witness: Witness, before: Values, onset: Onset) -> WitnessReport:
    evidence = witness.during(onset.time_s)
    return WitnessReport(evidence.observed_s is not None, evidence.observed_s, before, evidence.values)


def _applied(spec: FaultSpec, lease: Lease, onset: Onset, witnessed: WitnessReport) -> protocol.Applied:
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
