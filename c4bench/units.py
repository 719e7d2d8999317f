"""Quantities as people write them (`10gbit`) to SI base units and back."""

import re
from collections.abc import Mapping

from c4bench.errors import UsageError

_RATE = {"bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
_TIME = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_QUANTITY = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]+)\s*")

# RoCEv2 over Ethernet: 4096 bytes of payload travel in a 4154-byte frame (Ethernet 14, IPv4 20, UDP 8, BTH 12, ICRC 4;
# preamble, FCS and gap are not modelled by a software link).
PATH_MTU_BYTES = 4096
FRAME_BYTES = 4154
PAYLOAD_SHARE = PATH_MTU_BYTES / FRAME_BYTES


def parse_rate(text: str) -> float:
    """`"10gbit"` -> 1e10 bit/s. Raises UsageError for anything else."""
    return _parse(text, _RATE, "10gbit")


def parse_time(text: str) -> float:
    """`"5ms"` -> 0.005 s. Raises UsageError for anything else."""
    return _parse(text, _TIME, "5ms")


def _parse(text: str, scales: Mapping[str, float], example: str) -> float:
    match = _QUANTITY.fullmatch(text)
    if match is None or match[2] not in scales:
        raise UsageError(
            f"{text!r} is not a quantity; write a number and one of {', '.join(scales)}, such as {example}"
        )
    return float(match[1]) * scales[match[2]]


def payload_bound(rate_bps: float) -> float:
    """Payload bit/s that a link of `rate_bps` can carry once headers are paid, at path MTU 4096."""
    return rate_bps * PAYLOAD_SHARE


def format_rate(rate_bps: float) -> str:
    """1e10 -> `"10 Gbit/s"`, for people."""
    for scale, unit in ((1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s")):
        if rate_bps >= scale:
            return f"{rate_bps / scale:.3g} {unit}"
    return f"{rate_bps:.3g} bit/s"


def format_size(size_bytes: int) -> str:
    """1048576 -> `"1 MiB"`, for people."""
    for scale, unit in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size_bytes >= scale:
            return f"{size_bytes / scale:.4g} {unit}"
    return f"{size_bytes} B"


def format_time(time_s: float) -> str:
    """0.00238 -> `"2.38 ms"`, for people."""
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if abs(time_s) >= scale:
            return f"{time_s / scale:.3g} {unit}"
    return f"{time_s * 1e9:.3g} ns"
