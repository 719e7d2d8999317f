"""The write-ahead journal of the faults on this host and how to revert them, and the audit log.

One lock serialises all changes to the host. A revert takes the lock, reads the entry, undoes the fault and removes the
entry, so a second revert finds none. The kernel releases the lock of a process that dies; its entry is still there,
and the next revert repeats all of it.
"""

import fcntl
import logging
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self, TypeVar

import msgspec

from c4bench import files, namespaces
from c4bench.decoding import DecodingError, decoding, from_json
from c4bench.errors import UnhealthyError
from c4bench.inject import interfaces, targets
from c4bench.inject.actions import Action, Delete, Plan, attempt
from c4bench.inject.privilege import checked_name
from c4bench.model.fault import FaultRequest, Lease, TargetKind


class Entry(msgspec.Struct, frozen=True):
    """A fault in force. `found` lists by section the state it may change, as it was before all overlapping faults.

    `deadline_s` is the lease's end on the monotonic clock, since a fault may step the wall clock. `boot` is the boot
    id: a restart of the host ends all of a fault but the files it has made on a disk. `namespaces` are the inodes of
    the network namespaces in which it acts, by path.
    """

    lease: Lease
    kind: TargetKind
    plan: Plan
    found: dict[str, str]
    deadline_s: float
    boot: str
    namespaces: dict[str, int] = {}

    @property
    def in_force(self) -> bool:
        """Whether the host has not restarted since. What happens to an agentless switch outlives our own restart."""
        return self.boot == boot() or self.lease.request.switch is not None

    @property
    def over(self) -> bool:
        """Whether its lease has ended, or the host has restarted."""
        left_over = self.lease.request.switch is not None and self.lease.expires_s < time.time()
        return left_over or not self.in_force or self.deadline_s < time.monotonic()

    @property
    def revert(self) -> tuple[Action, ...]:
        """What is left to undo: after a restart, the files that the fault has made."""
        return self.plan.revert if self.in_force else self.files

    @property
    def files(self) -> tuple[Delete, ...]:
        """Every file that the fault has made."""
        return tuple(action for action in self.plan.revert if isinstance(action, Delete))


class Reverted(msgspec.Struct, frozen=True, tag_field="state", tag="reverted"):
    """How a fault ended, at `time_s` (host's clock).

    `residue` is the difference that is left (see `interfaces.difference`); `problems` are the errors of commands that
    had nothing to undo.
    """

    id: str
    by: str
    time_s: float
    residue: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


class Quarantine(msgspec.Struct, frozen=True, tag_field="state", tag="quarantined"):
    """A host whose state could not be restored: the residue of fault `id`, and the state `found` before it."""

    id: str
    kind: TargetKind
    request: FaultRequest
    found: dict[str, str]
    residue: tuple[str, ...]
    since_s: float
    namespaces: dict[str, int] = {}


def boot() -> str:
    """The kernel's boot id."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


_logger = logging.getLogger(__name__)

STATE = Path("/var/lib/c4bench")
_OF_SWITCHES = frozenset({TargetKind.PORT, TargetKind.SWITCH})
# A link that trains, and duplicate address detection, take seconds.
_RESIDUE_TIMEOUT_S = 10.0
# Each poll runs several commands, so the interval doubles.
_RESIDUE_FIRST_POLL_S = 0.02
# These revert a fault only where the injector did not.
_NOT_ASKED = ("watchdog", "sweep")


Record = TypeVar("Record", Entry, Quarantine)


class Journal:
    """The journal and the audit log under `root`."""

    def __init__(self, root: Path = STATE) -> None:
        self._root = root
        self._faults = root / "faults"

    @classmethod
    def of(cls, kind: TargetKind, host: str, root: Path = STATE) -> Self:
        """The journal of a host, or of a switch, kept on the host that controls it."""
        return cls(root / "switches" / checked_name("switch", host) if kind in _OF_SWITCHES else root)

    @classmethod
    def every(cls) -> list[Self]:
        """The journal of this host, and those of the switches it controls."""
        return [cls(), *cls.of_switches(STATE)]

    @classmethod
    def of_switches(cls, root: Path) -> list[Self]:
        """The journals of all switches that are controlled from here."""
        return [cls(path) for path in sorted((root / "switches").glob("*"))]

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the lock: nobody else changes the host within the block."""
        with _require_writable(self._root):
            self._faults.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._root / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        os.set_inheritable(descriptor, True)  # see actions.run
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)

    def entries(self) -> list[Entry]:
        """Every fault that has not been reverted, oldest first. Damaged files are left out; see `damaged`."""
        contents = [_read(path, Entry) for path in self._faults.glob("*.json")]
        known = [entry for entry in contents if isinstance(entry, Entry)]
        return sorted(known, key=lambda entry: (entry.lease.started_s, entry.lease.id))

    def damaged(self) -> list[str]:
        """What is to be done about each file of the journal that cannot be read, a line each."""
        entries = [(path, _read(path, Entry)) for path in sorted(self._faults.glob("*.json"))]
        quarantines = [(path, _read(path, Quarantine)) for path in self._root.glob("quarantine.json")]
        return [
            f"{path} is damaged ({problem}); undo by hand what it lists, then delete it"
            for path, problem in (*entries, *quarantines)
            if isinstance(problem, str)
        ]

    def find(self, fault_id: str) -> Entry | None:
        """The fault of that id, None when it is over."""
        content = _read(self._path(fault_id), Entry)
        return content if isinstance(content, Entry) else None

    def write(self, entry: Entry) -> None:
        """Write the entry; it is on disk when this returns."""
        _write(self._path(entry.lease.id), entry)

    def revert(self, fault_id: str, by: str) -> Reverted | None:
        """Revert a fault and remove its entry; None when it is gone already. The caller must not hold the lock."""
        with self.lock():
            undone = self.undo(fault_id, by)
        return undone and self.check_residue(*undone)

    def undo(self, fault_id: str, by: str) -> tuple[Entry, Reverted] | None:
        """`revert` for a caller that holds the lock, without the check for a residue."""
        entry = self.find(fault_id)
        if entry is None:
            return None
        problems = _undo(entry)
        reverted = Reverted(fault_id, by, time.time(), problems=problems)
        with suppress(UnhealthyError):  # a full disk must not keep the entry from being removed
            self.audit("reverted", entry.lease, by=by, problems=problems)
        self._path(fault_id).unlink()
        files.sync_folder(self._faults)
        return entry, reverted

    def check_residue(self, entry: Entry, reverted: Reverted) -> Reverted:
        """Wait until the target's state is as before the fault; a residue quarantines the host.

        Sections that another fault in force changes too are skipped; the last of overlapping faults is compared with
        the state before the first.
        """
        if not entry.in_force:
            return msgspec.structs.replace(
                reverted, residue=tuple(f"+ {file.path}" for file in entry.files if file.left)
            )
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

    def state_before(self, listing: dict[str, str]) -> dict[str, str]:
        """The listing with the sections that faults in force have changed as they were before those faults."""
        for entry in reversed(self.entries()):
            listing = listing | {section: text for section, text in entry.found.items() if section in listing}
        return listing

    def _undisturbed(self, entry: Entry) -> dict[str, str]:
        """The sections found before a fault, without those that other faults in force change."""
        others = {section for other in self.entries() for section in other.found if other.lease.id != entry.lease.id}
        return {section: text for section, text in entry.found.items() if section not in others}

    @property
    def quarantine(self) -> Quarantine | None:
        """Why faults are refused here, None when they are not."""
        content = _read(self._root / "quarantine.json", Quarantine)
        return content if isinstance(content, Quarantine) else None

    def refuse_quarantined(self) -> None:
        """Raises UnhealthyError with the residue when an earlier fault left one."""
        quarantine = _read(self._root / "quarantine.json", Quarantine)
        if isinstance(quarantine, str):
            raise UnhealthyError(
                f"{self._root}/quarantine.json is damaged ({quarantine}): an earlier fault left something here; "
                "compare the host with its configuration, then delete that file"
            )
        if quarantine:
            raise UnhealthyError(
                f"{quarantine.request.host} is quarantined since {quarantine.id}: {'; '.join(quarantine.residue)}; "
                "restore that, then run `heal`"
            )

    def recheck_quarantine(self) -> Quarantine | None:
        """Check a quarantined host again: the quarantine with its present residue, None when it is over."""
        old = self.quarantine
        if old is None:
            return None
        # With its network namespace went all that was left in it.
        residue = () if _vanished(old.namespaces) else self._residue(old.kind, old.request, old.found)
        if residue:
            return msgspec.structs.replace(old, residue=residue)
        (self._root / "quarantine.json").unlink()
        return None

    def _quarantine(self, entry: Entry, residue: tuple[str, ...]) -> None:
        lease = entry.lease
        quarantine = Quarantine(
            lease.id, entry.kind, lease.request, entry.found, residue, time.time(), dict(entry.namespaces)
        )
        _write(self._root / "quarantine.json", quarantine)

    def _residue(self, kind: TargetKind, request: FaultRequest, before: dict[str, str]) -> tuple[str, ...]:
        now = targets.examine(kind, request).listing
        return interfaces.difference(before, {section: now.get(section, "") for section in before})

    def audit(self, event: str, lease: Lease, **fields: Any) -> None:  # noqa: ANN401  (any JSON)
        """Add a line to `audit.jsonl`, and log it; lines are never changed."""
        who = {"user": os.environ.get("SUDO_USER") or os.environ.get("USER", ""), "pid": os.getpid()}
        what = {"time_s": time.time(), "event": event, "id": lease.id, "target": lease.request.where}
        line = msgspec.json.encode(what | fields | who) + b"\n"
        with _require_writable(self._root):
            descriptor = os.open(
                self._root / "audit.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o640
            )
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


def _level(event: str, fields: dict[str, Any]) -> int:
    if event == "residue":
        return logging.ERROR
    trouble = fields.get("problems") or fields.get("by") in _NOT_ASKED
    return logging.WARNING if trouble else logging.INFO


def _write(path: Path, what: Entry | Quarantine) -> None:
    """Put it on disk, all of it or nothing. Raises DecodingError for what could not be read again."""
    with decoding():
        content = msgspec.json.encode(what)
    from_json(content, type(what))
    with _require_writable(path):
        files.replace(path, [content], durable=True)


@contextmanager
def _require_writable(path: Path) -> Iterator[None]:
    """Turn an OSError into UnhealthyError: without a journal entry on disk no host is changed."""
    try:
        yield
    except OSError as error:
        raise UnhealthyError(
            f"{path} cannot be written: {error.strerror}; no fault is applied without its record, free some space"
        ) from None


def _read(path: Path, kind: type[Record]) -> Record | str | None:
    """The content of a file, what is wrong with it, or None where there is none."""
    try:
        return from_json(path.read_bytes(), kind)
    except FileNotFoundError:
        return None
    except (DecodingError, OSError) as error:
        return str(error)


def _undo(entry: Entry) -> tuple[str, ...]:
    """Run every action of the revert, even after errors: a fault that was killed midway has only some to undo.

    Nothing is done in another network namespace than the fault was applied in. Raises UnreachableError when an
    agentless switch does not answer: the fault may then still be in force.
    """
    if not entry.in_force:
        return _perform(entry.revert)
    try:
        with namespaces.pinned(entry.namespaces):
            return _perform(entry.revert)
    except OSError as error:
        return (*_perform(entry.files), f"{error}: nothing was reverted there")


def _perform(actions: Iterable[Action]) -> tuple[str, ...]:
    return tuple(problem for action in actions if (problem := attempt(action)))


def own_state() -> Path:
    """Where the faults of agentless switches are kept, which whoever calls applies as themselves."""
    if os.geteuid() == 0:
        return STATE
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "c4bench"


def _vanished(inodes: Mapping[str, int]) -> bool:
    """Whether one of the network namespaces does not exist any more, or another has its place."""
    try:
        with namespaces.pinned(inodes):
            return False
    except OSError:
        return True
