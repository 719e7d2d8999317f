"""How a communicator behaves."""

import time
from collections.abc import Callable

import msgspec

from c4bench.errors import UsageError
from c4bench.verbs.transport import PATIENT, TransportProfile

_EPOCH_NS = time.time_ns() - time.monotonic_ns()


def now_ns() -> int:
    """Wall-clock nanoseconds that never step back: one clock read, anchored when the process started."""
    return _EPOCH_NS + time.monotonic_ns()


class Options(msgspec.Struct, frozen=True):
    """Options of a communicator; every member must use the same.

    `chunk_bytes` is the largest message. `staging_bytes` is the memory each ring edge reduces from, per channel; it
    is cut into as many slots as the messages of an operation allow. `window` messages may be unacknowledged at a
    time. `channels` is how many NICs to use, 0 for all. `paths` is `ecmp` or `planned`. `timeout_s` bounds every
    wait.
    """

    chunk_bytes: int = 512 << 10
    staging_bytes: int = 2 << 20
    window: int = 8
    channels: int = 0
    paths: str = "ecmp"
    profile: TransportProfile = PATIENT
    timeout_s: float = 1800.0
    clock_ns: Callable[[], int] = now_ns

    def __post_init__(self) -> None:
        if self.paths not in {"ecmp", "planned"}:
            raise UsageError(f"paths {self.paths!r} is not a choice; use ecmp or planned")
        if self.chunk_bytes < 64 or self.chunk_bytes % 64:
            raise UsageError(f"chunk_bytes {self.chunk_bytes} must be a positive multiple of 64")
        if self.staging_bytes < self.chunk_bytes:
            raise UsageError(f"staging_bytes {self.staging_bytes} must hold a chunk of {self.chunk_bytes}")
        if self.window < 1 or self.timeout_s <= 0:
            raise UsageError("window and timeout_s must be positive")
