"""What the journal of faults holds: faults in force, how they ended, and hosts that are not as they were."""

from pathlib import Path

import msgspec

from c4bench.inject.actions import Action, Delete, Plan
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
        """Whether the host has not restarted since."""
        return self.boot == boot()

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
