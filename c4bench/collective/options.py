"""Options of a communicator."""

import time
from collections.abc import Callable
from typing import Any

import msgspec

from c4bench.errors import UsageError
from c4bench.model.fabric import USUAL_QPS
from c4bench.verbs.transport import PATIENT, PROFILES, TransportProfile
from c4bench.verbs.waiting import MODES

ALGORITHMS = ("auto", "ring", "tree", "hierarchical")
_EPOCH_NS = time.time_ns() - time.monotonic_ns()


def now_ns() -> int:
    """Wall-clock nanoseconds that never step back: the monotonic clock plus its offset when the process started."""
    return _EPOCH_NS + time.monotonic_ns()


# A message lasts this long: long enough to be worth its completions, short enough to delay little behind it.
_CHUNK_S = 100e-6
_SMALLEST_CHUNK_BYTES = 128 << 10
LARGEST_CHUNK_BYTES = 256 << 10
# Messages in flight for each QP: while one is acknowledged, the next is sent.
_MESSAGES_OF_QP = 2


class FailureTimeouts(msgspec.Struct, frozen=True):
    """Timeouts of a resilient communicator's failure detection and recovery, in seconds.

    - `tick_s`: all rails are checked this often during an operation.
    - `quiet_s`: a rail silent for this long is probed, with zero bytes and transport profile `probe`. It is longer than
      a switch takes to re-hash, and shorter than any transport's own retries.
    - `hold_s`: a port that is down for this long is treated as lost.
    - `resend_s`: unanswered control messages are repeated after this time.
    - `retry_s`: a lost rail is reconnected after this time, doubled up to `longest_s` each time it fails again within
      `longest_s`.
    - `steady_s`: a reconnected rail must pass probes for this long before it carries data.
    """

    tick_s: float = 0.005
    quiet_s: float = 0.055
    hold_s: float = 0.022
    resend_s: float = 0.05
    retry_s: float = 0.25
    steady_s: float = 0.25
    longest_s: float = 4.0
    probe: TransportProfile = TransportProfile("probe", timeout=8, retries=1, rnr_retries=6)


class Options(msgspec.Struct, frozen=True):
    """Options of a communicator; every member must use the same.

    - `chunk_bytes`: the largest message; 0 chooses it from the slowest NIC's rate and the number of QPs.
    - `staging_bytes`: memory for messages to be reduced, for each ring edge and channel of up to four QPs; more QPs,
      which have more in flight, get more in proportion.
    - `window`: messages in flight for each channel; up to four times as many shorter ones, with the same bytes. 0 is
      two for each QP, and at least eight; of messages that are shorter for more than four QPs, as many bytes.
    - `algorithm`: how an all-reduce goes: over a `ring`, a double binary `tree` (`collective.tree`), or `hierarchical`
      inside hosts and over rails (`collective.hierarchical`), which is a ring where ranks have no NIC each. `auto` is
      the one that should take the least time for the array's size (`cost.all_reduce`).
    - `channels`: how many NICs to use, 0 for all.
    - `qps`: QPs of a connection, which share its load; they post no faster than the NIC sends, and little faster than
      messages are acknowledged. 0 leaves the number to C4P (`RankEndpointContext.with_qps`).
    - `paths`: `ecmp` or `planned`.
    - `completions`: `events` sleeps until the NIC notifies, `polling` spins.
    - `connect_s`, `timeout_s`: the longest wait for members when connecting, and in every operation.
    - `record`: False turns telemetry off, to measure its cost.
    - `resilient`: operations survive the loss of NICs as long as each pair of neighbours has a pair of NICs that reach
      each other; `timeouts` set how soon failures are detected.
    - `split_bytes`: resilient all-reduces of this size or more may avoid degraded ranks (`collective.degraded`).
    - `spread`: False has a single other NIC carry a lost NIC's load, to measure what that costs.
    """

    chunk_bytes: int = 0
    staging_bytes: int = 2 << 20
    window: int = 0
    algorithm: str = "ring"
    channels: int = 0
    qps: int = 1
    paths: str = "ecmp"
    profile: TransportProfile = PATIENT
    completions: str = "events"
    connect_s: float = 120.0
    timeout_s: float = 1800.0
    record: bool = True
    clock_ns: Callable[[], int] = now_ns
    resilient: bool = False
    timeouts: FailureTimeouts = FailureTimeouts()
    split_bytes: int = 16 << 20
    spread: bool = True

    def __post_init__(self) -> None:
        known = {"paths": ("ecmp", "planned"), "completions": tuple(MODES), "algorithm": ALGORITHMS}
        for name, choices in known.items():
            if getattr(self, name) not in choices:
                raise UsageError(f"{name} {getattr(self, name)!r} is unknown; use {' or '.join(choices)}")
        if self.chunk_bytes < 0 or self.chunk_bytes % 64:
            raise UsageError(f"chunk_bytes {self.chunk_bytes} must be a multiple of 64, or 0")
        largest = self.chunk_bytes or LARGEST_CHUNK_BYTES
        if self.staging_bytes < largest:
            raise UsageError(f"staging_bytes {self.staging_bytes} must hold a chunk of {largest}")
        if min(self.timeout_s, self.connect_s) <= 0:
            raise UsageError("timeout_s and connect_s must be positive")
        if self.window < 0:
            raise UsageError(f"window {self.window} must be positive, or 0 for two messages for each QP")
        if self.qps < 0:
            raise UsageError(f"qps {self.qps} must be positive, or 0 to leave the number to C4P")

    @classmethod
    def of(cls, parameters: msgspec.Struct, **others: Any) -> "Options":  # noqa: ANN401  (each option has its own type)
        """The options that a program's parameters have, with the profile by its name; `others` replace them."""
        shared = (name for name in cls.__struct_fields__ if name in parameters.__struct_fields__)
        options = {name: getattr(parameters, name) for name in shared} | others
        if isinstance(options.get("profile"), str):
            options["profile"] = PROFILES[options["profile"]]
        return cls(**options)

    def with_qps(self, qps: int) -> "Options":
        """These options with so many QPs, with the window that is right for them if none is given, and room for it.

        Staging holds what is in flight and as much again: a sender would otherwise wait for credit, which comes in
        batches and behind data.
        """
        messages = _MESSAGES_OF_QP * (1 if self.chunk_bytes else _parts(qps))
        carrying = max(qps, USUAL_QPS)
        return msgspec.structs.replace(
            self,
            qps=qps,
            window=self.window or messages * carrying,
            staging_bytes=self.staging_bytes * carrying // USUAL_QPS,
        )

    def chunk_for(self, rate_bps: float) -> int:
        """The largest message at a line rate in bit/s: `chunk_bytes`, or a power of two from 128 to 256 KiB.

        More than four QPs send as many messages at a time, so each is shorter, or it would end later.
        """
        if self.chunk_bytes:
            return self.chunk_bytes
        chunk_bytes = 1 << int(rate_bps / 8 * _CHUNK_S).bit_length() - 1 if rate_bps > 8 / _CHUNK_S else 0
        chunk_bytes = max(_SMALLEST_CHUNK_BYTES, min(LARGEST_CHUNK_BYTES, chunk_bytes))
        return chunk_bytes // _parts(self.qps)


def _parts(qps: int) -> int:
    """Into how many a message of up to four QPs is cut for so many: a power of two."""
    return 1 << ((max(qps, 1) - 1) // USUAL_QPS).bit_length()
