"""Speeds as cabling files write them, in bit/s."""

import re

# Of one part of a link, by the name of InfiniBand's speed (IBTA); a link `4xHDR` has four.
_INFINIBAND_GBPS = {
    "SDR": 2.5,
    "DDR": 5.0,
    "QDR": 10.0,
    "FDR10": 10.0,
    "FDR": 14.0,
    "EDR": 25.0,
    "HDR": 50.0,
    "NDR": 100.0,
    "XDR": 200.0,
}
_INFINIBAND = re.compile(r"(\d{1,2})x\s*([A-Z]+(?:10)?)", re.IGNORECASE)
_WRITTEN = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)\s*([KMGT])(?:b|bit|bps|bit/s|bits|b/s|e|be)?", re.IGNORECASE)
_SCALES = {"K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


def infiniband(text: str) -> float:
    """`4xHDR` -> 2e11; 0 for anything else."""
    match = _INFINIBAND.fullmatch(text.strip())
    return int(match[1]) * _INFINIBAND_GBPS.get(match[2].upper(), 0.0) * 1e9 if match else 0.0


def written(text: str, scale: float = 0.0) -> float:
    """`100G`, `400 Gbit/s` and, by `scale`, a number without a unit; 0 for anything else."""
    digits = text.strip().replace(",", "")
    match = _WRITTEN.fullmatch(digits)
    if match:
        return float(match[1]) * _SCALES[match[2].upper()]
    return int(digits) * scale if re.fullmatch(r"(?a:\d{1,12})", digits) else 0.0


def format_rate(rate_bps: float) -> str:
    """1e11 -> `100gbit`, as topology files write it."""
    for scale, unit in ((1e9, "gbit"), (1e6, "mbit"), (1e3, "kbit")):
        if rate_bps >= scale and (rate_bps / scale * 1000) % 1 == 0:
            return f"{rate_bps / scale:.10g}{unit}"
    return f"{rate_bps:.0f}bit"
