"""How long a resilient communicator waits before it believes what."""

import msgspec

from c4bench.verbs.transport import TransportProfile


class FailureTimeouts(msgspec.Struct, frozen=True):
    """Times in seconds.

    What has been silent for `quiet_s` is probed, with zero bytes and the transport profile `probe`; that is longer than
    a switch takes to re-hash, and shorter than any transport's own retries. A port that is down for `hold_s` is
    believed to be. Words are repeated after `resend_s`. A lost rail is tried again after `retry_s`, doubled up to
    `longest_s` each time it fails within that time, and must then have been good for `steady_s`. The state of all rails
    is looked at every `tick_s` of an operation.
    """

    tick_s: float = 0.005
    quiet_s: float = 0.055
    hold_s: float = 0.022
    resend_s: float = 0.05
    retry_s: float = 0.25
    steady_s: float = 0.25
    longest_s: float = 4.0
    probe: TransportProfile = TransportProfile("probe", timeout=8, retries=1, rnr_retries=6)
