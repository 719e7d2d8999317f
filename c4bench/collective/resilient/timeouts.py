"""Timeouts of failure detection and recovery."""

import msgspec

from c4bench.verbs.transport import TransportProfile


class FailureTimeouts(msgspec.Struct, frozen=True):
    """Times in seconds.

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
