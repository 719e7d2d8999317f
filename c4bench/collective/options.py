"""How a communicator behaves."""

import time
from collections.abc import Callable

import msgspec

from c4bench.collective.memory import HostMemory, Provider
from c4bench.collective.resilient.timeouts import FailureTimeouts
from c4bench.errors import UsageError
from c4bench.verbs.transport import PATIENT, TransportProfile
from c4bench.verbs.waiting import MODES

_EPOCH_NS = time.time_ns() - time.monotonic_ns()


def now_ns() -> int:
    """Wall-clock nanoseconds that never step back: one clock read, anchored when the process started."""
    return _EPOCH_NS + time.monotonic_ns()


# A message in this time: long enough to be worth its completions, short enough that little waits behind it.
_CHUNK_S = 100e-6
_SMALLEST_CHUNK_BYTES = 128 << 10
LARGEST_CHUNK_BYTES = 256 << 10


class Options(msgspec.Struct, frozen=True):
    """Options of a communicator; every member must use the same.

    `chunk_bytes` is the largest message; 0 leaves it to the slowest NIC's rate. `staging_bytes` is the memory each ring
    edge reduces from, per channel; it is cut into as many slots as the messages of an operation allow. `window`
    messages may be unacknowledged at a time, or as many bytes in shorter ones, up to four times as many. `channels` is
    how many NICs to use, 0 for all; `qps` is how many QPs share the load of a connection, each on any path; together
    they post no faster than their NIC sends, and hardly faster than messages are acknowledged. `paths` is `ecmp` or
    `planned`. `completions` says how to wait: `events` sleeps until the NIC notifies, `polling` spins. `connect_s`
    bounds how long members are waited for when connecting, `timeout_s` every operation. `record` can be turned off to
    measure what telemetry costs. `memory` provides the arrays of `Communicator.empty`. `resilient` has operations
    outlive the loss of NICs, as long as two hosts have a pair left that reach each other; `patience` says how soon what
    is believed then. All-reduces of `split_bytes` or more go the cheaper of two ways then, beside a host that has lost
    NICs (see `collective.degraded`). Without `spread` one other NIC carries all that a lost one carried, to show what
    that costs.
    """

    chunk_bytes: int = 0
    staging_bytes: int = 2 << 20
    window: int = 8
    channels: int = 0
    qps: int = 1
    paths: str = "ecmp"
    profile: TransportProfile = PATIENT
    completions: str = "events"
    connect_s: float = 120.0
    timeout_s: float = 1800.0
    record: bool = True
    memory: Provider = HostMemory()
    clock_ns: Callable[[], int] = now_ns
    resilient: bool = False
    patience: FailureTimeouts = FailureTimeouts()
    split_bytes: int = 16 << 20
    spread: bool = True

    def __post_init__(self) -> None:
        for name, choices in (("paths", ("ecmp", "planned")), ("completions", tuple(MODES))):
            if getattr(self, name) not in choices:
                raise UsageError(f"{name} {getattr(self, name)!r} is not a choice; use {' or '.join(choices)}")
        if self.chunk_bytes < 0 or self.chunk_bytes % 64:
            raise UsageError(f"chunk_bytes {self.chunk_bytes} must be a multiple of 64, or 0")
        largest = self.chunk_bytes or LARGEST_CHUNK_BYTES
        if self.staging_bytes < largest:
            raise UsageError(f"staging_bytes {self.staging_bytes} must hold a chunk of {largest}")
        if min(self.window, self.qps, self.timeout_s, self.connect_s) <= 0:
            raise UsageError("window, qps, timeout_s and connect_s must be positive")

    def chunk_for(self, rate_bps: float) -> int:
        """The largest message between NICs of that line rate: a power of two, 128 to 256 KiB, unless it is given."""
        if self.chunk_bytes:
            return self.chunk_bytes
        wanted = 1 << int(rate_bps / 8 * _CHUNK_S).bit_length() - 1 if rate_bps > 8 / _CHUNK_S else 0
        return max(_SMALLEST_CHUNK_BYTES, min(LARGEST_CHUNK_BYTES, wanted))
