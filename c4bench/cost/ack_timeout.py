"""How long a NIC takes to say that a peer does not answer: RETRY_EXC_ERR of a reliable connection.

A QP's `timeout` T means a nominal time-out of 4.096 us x 2^T, its `retry_cnt` R how often a packet is sent again. NICs
take other times. ConnectX-6 waits at least as long as for T = 16 unless its acknowledgement time-out floor is off
(`min_ack_timeout_limit_disabled`, a setting of the whole function): detection takes R regular time-outs of twice the
nominal one, less what an adaptive phase at the beginning saves. With the floor off it takes R + 1 nominal time-outs
after a first one of another length. rxe's timers run in ticks of the kernel.

The constants of ConnectX-6 are fitted to measurements of others on one pair of hosts, firmware 20.43.4100 (MIT
licence: github.com/unionxic/rdma-fault-characterization), and hold for other NICs no further than that.
"""

import math
from bisect import bisect
from enum import StrEnum

import msgspec


class Nic(StrEnum):
    """Whose time-outs: rxe in the embedded lab, or ConnectX-6 as it is shipped, or with the floor off."""

    RXE = "rxe"
    CX6 = "ConnectX-6 as shipped"
    CX6_FLOOR_OFF = "ConnectX-6 with the floor off"


class Detection(msgspec.Struct, frozen=True):
    """From the posted request to its completion with an error, s: usually, and the bounds of what was measured."""

    usual_s: float
    least_s: float
    most_s: float


TIMEOUT_MAX, RETRIES_MAX = 31, 7
_UNIT_S = 4.096e-6
# The lab's kernel counts timers in ticks (CONFIG_HZ=100).
_TICK_S = 0.01
_FLOOR = 16
# What the adaptive phase saves of the regular time-outs, at the floor and above it, s.
_SAVED_AT_FLOOR_S, _SAVED_ABOVE_S = 0.0964, 0.365
# A single retry is used up by the adaptive phase, which for T = 17 ends at this time.
_ONE_RETRY_17_S = 0.9771
# Without a retry anything between these was measured.
_NO_RETRY_S = (0.977, 2.051)
# A process's first fault takes up to the regular time-outs and this, s, or less than usual by this part of one.
_MORE_S, _LESS = 0.006, 0.32
# With the floor off: the first time-out as a multiple of the nominal one, by T; in between by interpolation.
_FIRST_BY_T = {8: 1.12, 10: 1.02, 12: 0.765, 14: 0.566, 16: 0.642, 17: 0.821, 20: 0.833}
# The spread of the first time-out that was measured, as multiples of the nominal one.
_FIRST_LEAST, _FIRST_MOST = 0.51, 1.34


def nominal_s(timeout: int) -> float:
    """The nominal time-out of a QP, s (InfiniBand Architecture Specification, volume 1, 9.7.6.1.3)."""
    return math.ldexp(_UNIT_S, timeout)


def detection(nic: Nic, timeout: int, retries: int) -> Detection:
    """How long it takes on that NIC with a QP's `timeout` and `retry_cnt`.

    Raises ValueError for a timeout outside 1 to 31, where 0 would mean for ever, or retries outside 0 to 7.
    """
    if not 1 <= timeout <= TIMEOUT_MAX or not 0 <= retries <= RETRIES_MAX:
        raise ValueError(
            f"timeout {timeout} and retry_cnt {retries}: they are 1 to {TIMEOUT_MAX} and 0 to {RETRIES_MAX}"
        )
    match nic:
        case Nic.RXE:
            return _rxe(timeout, retries)
        case Nic.CX6:
            return _as_shipped(timeout, retries)
        case Nic.CX6_FLOOR_OFF:
            return _floor_off(timeout, retries)


def elsewhere(measured_s: float, timeout: int, retries: int, patience_s: float = math.inf) -> dict[Nic, float]:
    """What a time that rxe's retries are part of would be with the retries of each other NIC, s.

    `patience_s` is after what time whoever waits gives up by itself.
    """
    times_s = {nic: min(patience_s, detection(nic, timeout, retries).usual_s) for nic in Nic}
    rest_s = max(0.0, measured_s - times_s.pop(Nic.RXE))
    return {nic: rest_s + time_s for nic, time_s in times_s.items()}


def _rxe(timeout: int, retries: int) -> Detection:
    """Each timer ends with a tick, and the first begins within one."""
    ticks = max(1, math.floor(nominal_s(timeout) / _TICK_S)) + 1
    most_s = (retries + 1) * ticks * _TICK_S
    return Detection(most_s - _TICK_S / 2, most_s - _TICK_S, most_s)


def _as_shipped(timeout: int, retries: int) -> Detection:
    if not retries:
        low_s, high_s = _NO_RETRY_S
        return Detection((low_s + high_s) / 2, low_s, high_s)
    one_s = 2 * nominal_s(max(timeout, _FLOOR))
    usual_s = retries * one_s - (_SAVED_AT_FLOOR_S if timeout <= _FLOOR else _SAVED_ABOVE_S)
    if (timeout, retries) == (_FLOOR + 1, 1):
        usual_s = _ONE_RETRY_17_S
    return Detection(usual_s, usual_s - _LESS * one_s, retries * one_s + _MORE_S)


def _floor_off(timeout: int, retries: int) -> Detection:
    nominal = nominal_s(timeout)
    usual, least, most = ((retries + 1 + first) * nominal for first in (_first(timeout), _FIRST_LEAST, _FIRST_MOST))
    return Detection(usual, least, most)


def _first(timeout: int) -> float:
    """The first time-out as a multiple of the nominal one; beyond the measured exponents, that of the nearest."""
    known = sorted(_FIRST_BY_T)
    above = bisect(known, timeout)
    if above in {0, len(known)}:
        return _FIRST_BY_T[known[min(above, len(known) - 1)]]
    low, high = known[above - 1], known[above]
    share = (timeout - low) / (high - low)
    return _FIRST_BY_T[low] * (1 - share) + _FIRST_BY_T[high] * share
