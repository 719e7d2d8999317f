"""What this host is suffering and how to undo it, on disk before anything is done; and the record of all that was done.

One lock serialises every change to the host. Whoever reverts takes the lock, finds the entry, undoes, removes the
entry: a second one finds none. The kernel drops a dead holder's lock with the entry still there, and the next one does
it all again.
"""

import fcntl
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import msgspec

from c4bench.errors import C4Error, UnhealthyError, UsageError
from c4bench.inject import interfaces, targets
from c4bench.inject.actions import Plan
from c4bench.inject.privilege import checked_name
from c4bench.model.fault import FaultRequest, Lease, TargetKind

_logger = logging.getLogger(__name__)

STATE = Path("/var/lib/c4bench")
_OF_SWITCHES = frozenset({TargetKind.PORT, TargetKind.SWITCH})
# A link that trains, and duplicate address detection, take seconds.
_RESIDUE_TIMEOUT_S = 10.0
# Each look costs several commands, so they come at longer and longer intervals.
_RESIDUE_FIRST_POLL_S = 0.02
# They revert a fault only where the injector has failed to.
_NOT_ASKED = ("watchdog", "sweep")


class Entry(msgspec.Struct, frozen=True):
    """A fault in force. `found` lists by section what it may disturb, as it was before all faults that overlap.

    `deadline_s` is the lease's end on the monotonic clock: a fault may well step the other one. It means nothing after
    a restart of the host, and neither does the fault, which `boot` tells.
    """

    lease: Lease
    kind: TargetKind
    plan: Plan
    found: dict[str, str]
    deadline_s: float
    boot: str

    @property
    def in_force(self) -> bool:
        """Whether it is there to be undone: a restart of the host has ended what came before it."""
        return self.boot == boot()


class Reverted(msgspec.Struct, frozen=True, tag_field="state", tag="reverted"):
    """How a fault ended, at `time_s` (host's clock).

    `residue` is what the host still has or lacks (see `interfaces.difference`); `problems` is what commands said that
    had nothing left to undo.
    """

    id: str
    by: str
    time_s: float
    residue: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


class Quarantine(msgspec.Struct, frozen=True, tag_field="state", tag="quarantined"):
    """A host that could not be put right: what the fault `id` left over, and how the target was `found` before it."""

    id: str
    kind: TargetKind
    request: FaultRequest
    found: dict[str, str]
    residue: tuple[str, ...]
    since_s: float


class Journal:
    """The journal and the audit log under `root`."""

    def __init__(self, root: Path = STATE) -> None:
        self._root = root
        self._faults = root / "faults"

    @classmethod
    def of(cls, kind: TargetKind, host: str) -> Self:
        """A host's own, or that of a switch, which the host that drives it keeps for it."""
        return cls(STATE / "switches" / checked_name("switch", host) if kind in _OF_SWITCHES else STATE)

    @classmethod
    def every(cls) -> list[Self]:
        """The host's own, and those of the switches it drives."""
        return [cls(), *(cls(path) for path in sorted((STATE / "switches").glob("*")))]

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Nobody else changes the host within the block."""
        with _require_writable(self._root):
            self._faults.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._root / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        os.set_inheritable(descriptor, True)  # see actions.run
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)

    def entries(self) -> list[Entry]:
        """Every fault that nobody has reverted, oldest first. Raises UsageError for a damaged file."""
        found = [self._read(path) for path in self._faults.glob("*.json")]
        return sorted(found, key=lambda entry: (entry.lease.started_s, entry.lease.id))

    def find(self, fault_id: str) -> Entry | None:
        """The fault of that id, None when it is over."""
        path = self._path(fault_id)
        return self._read(path) if path.exists() else None

    def write(self, entry: Entry) -> None:
        """Put the intent on disk, for good when this returns."""
        _write_atomically(self._path(entry.lease.id), entry)
        self._sync()

    def revert(self, fault_id: str, by: str) -> Reverted | None:
        """Undo a fault and forget it; None when somebody else has. The caller does not hold the lock."""
        with self.lock():
            undone = self.undo(fault_id, by)
        return undone and self.check_residue(*undone)

    def undo(self, fault_id: str, by: str) -> tuple[Entry, Reverted] | None:
        """`revert` for a caller that holds the lock, without the look at what is left over."""
        entry = self.find(fault_id)
        if entry is None:
            return None
        problems = _undo(entry.plan) if entry.in_force else ()
        reverted = Reverted(fault_id, by, time.time(), problems=problems)
        with suppress(UnhealthyError):  # a disk without room must not keep us from forgetting what is undone
            self.audit("reverted", entry.lease, by=by, problems=problems)
        self._path(fault_id).unlink()
        self._sync()
        return entry, reverted

    def check_residue(self, entry: Entry, reverted: Reverted) -> Reverted:
        """Look for what the fault left over, once the target has come to rest; a residue quarantines the host.

        What another fault in force disturbs too is not to be told yet; the last of them is compared with what was there
        before the first.
        """
        if not entry.in_force:
            return reverted
        until_s = time.monotonic() + _RESIDUE_TIMEOUT_S
        step_s, residue = _RESIDUE_FIRST_POLL_S, tuple[str, ...]()
        while alone := self._undisturbed(entry):
            residue = self._residue(entry.kind, entry.lease.request, alone)
            if not residue or time.monotonic() > until_s:
                break
            time.sleep(step_s)
            step_s *= 2
        if residue:
            self.audit("residue", entry.lease, by=reverted.by, residue=residue)
            self._quarantine(entry, residue)
        return msgspec.structs.replace(reverted, residue=residue)

    def state_before(self, found: dict[str, str]) -> dict[str, str]:
        """A listing as it was before all faults in force, as far as those have changed what it lists."""
        for entry in reversed(self.entries()):
            found = found | {section: text for section, text in entry.found.items() if section in found}
        return found

    def _undisturbed(self, entry: Entry) -> dict[str, str]:
        """What was found before a fault, without what others in force disturb."""
        others = {section for other in self.entries() for section in other.found if other.lease.id != entry.lease.id}
        return {section: text for section, text in entry.found.items() if section not in others}

    @property
    def quarantine(self) -> Quarantine | None:
        """Why no fault is let loose here, None when nothing is wrong."""
        path = self._root / "quarantine.json"
        return msgspec.json.decode(path.read_bytes(), type=Quarantine) if path.exists() else None

    def refuse_quarantined(self) -> None:
        """Raises UnhealthyError with what is wrong when the host was not put right after an earlier fault."""
        found = self.quarantine
        if found:
            raise UnhealthyError(
                f"{found.request.host} is quarantined since {found.id}: {'; '.join(found.residue)}; "
                "mend that, then let `heal` look again"
            )

    def recheck_quarantine(self) -> Quarantine | None:
        """Look again at a quarantined host: what still holds of the quarantine, None when it is (now) over."""
        found = self.quarantine
        if found is None:
            return None
        residue = self._residue(found.kind, found.request, found.found)
        if residue:
            return msgspec.structs.replace(found, residue=residue)
        (self._root / "quarantine.json").unlink()
        return None

    def _quarantine(self, entry: Entry, residue: tuple[str, ...]) -> None:
        lease = entry.lease
        found = Quarantine(lease.id, entry.kind, lease.request, entry.found, residue, time.time())
        _write_atomically(self._root / "quarantine.json", found)

    def _residue(self, kind: TargetKind, request: FaultRequest, found: dict[str, str]) -> tuple[str, ...]:
        now = targets.examine(kind, request).listing
        return interfaces.difference(found, {section: now.get(section, "") for section in found})

    def audit(self, event: str, lease: Lease, **fields: Any) -> None:  # noqa: ANN401  (whatever the event has to tell)
        """Add a line to `audit.jsonl`, and log it; nothing there is ever changed."""
        who = {"user": os.environ.get("SUDO_USER") or os.environ.get("USER", ""), "pid": os.getpid()}
        what = {"time_s": time.time(), "event": event, "id": lease.id, "target": lease.request.where}
        line = msgspec.json.encode(what | fields | who) + b"\n"
        with _require_writable(self._root):
            descriptor = os.open(self._root / "audit.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o640)
            try:
                os.write(descriptor, line)
            finally:
                os.close(descriptor)
        by = f" by {fields['by']}" if "by" in fields else ""
        arguments = (lease.id, lease.request.where, event, by, who["user"] or "unknown", lease.request.lease_s)
        known = {"lease": lease.id, "target": lease.request.where, "event": event} | who
        _logger.log(_level(event, fields), "%s on %s: %s%s (asked by %s, lease %g s)", *arguments, extra=known)

    def _path(self, fault_id: str) -> Path:
        return self._faults / f"{checked_name('fault', fault_id)}.json"

    def _read(self, path: Path) -> Entry:
        try:
            return msgspec.json.decode(path.read_bytes(), type=Entry)
        except msgspec.MsgspecError as error:
            raise UsageError(f"{path}: {error}; undo by hand what it lists, and delete it") from None

    def _sync(self) -> None:
        descriptor = os.open(self._faults, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _level(event: str, fields: dict[str, Any]) -> int:
    if event == "residue":
        return logging.ERROR
    trouble = fields.get("problems") or fields.get("by") in _NOT_ASKED
    return logging.WARNING if trouble else logging.INFO


def _write_atomically(path: Path, what: Entry | Quarantine) -> None:
    """The whole file or nothing of it, whatever happens meanwhile."""
    fresh = path.with_suffix(".new")
    with _require_writable(path), fresh.open("wb") as file:
        file.write(msgspec.json.encode(what))
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)


@contextmanager
def _require_writable(path: Path) -> Iterator[None]:
    """What must be on disk before a host is touched is, or nothing is touched."""
    try:
        yield
    except OSError as error:
        raise UnhealthyError(
            f"{path} cannot be written, and no fault begins without a record of it: {error.strerror}; make room there"
        ) from None


def _undo(plan: Plan) -> tuple[str, ...]:
    """Every action of the revert, whatever becomes of the others: a fault killed half-way has only some to undo."""
    problems = []
    for action in plan.revert:
        try:
            action.perform()
        except C4Error as error:
            problems.append(str(error))
    return tuple(problems)


def boot() -> str:
    """Which start of the host this is."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
