"""The state of a GPU, from `nvidia-smi`."""

import shutil

import msgspec

from c4bench.decoding import DecodingError, whole_number
from c4bench.errors import UnhealthyError, UsageError
from c4bench.inject.actions import run
from c4bench.model.fault import FaultRequest

_FIELDS = (
    "index",
    "power.limit",
    "power.min_limit",
    "power.max_limit",
    "enforced.power.limit",
    "clocks.gr",
    "clocks.max.gr",
)


class GpuTarget(msgspec.Struct, frozen=True):
    """Power in W, clocks in MHz. `enforced_w` is the limit in force, `limit_w` the one that software has set."""

    index: int
    limit_w: float
    least_w: float
    most_w: float
    enforced_w: float
    clock_mhz: float
    clock_max_mhz: float

    @property
    def listing(self) -> dict[str, str]:
        """The settings that a fault may change; the clock itself goes up and down with the load."""
        return {"power limit": f"{self.limit_w:g} W"}


def hardware() -> str:
    """`nvidia`, or `simulated` on a host without nvidia-smi."""
    return "nvidia" if shutil.which("nvidia-smi") else "simulated"


def examine(request: FaultRequest) -> GpuTarget:
    """Query it. Raises UsageError when the host has no such GPU, UnhealthyError without nvidia-smi."""
    text = run(("nvidia-smi", f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits"), None)
    gpus = parse(text)
    if request.gpu not in gpus:
        raise UsageError(f"{request.host} has no GPU {request.gpu}; it has: {', '.join(map(str, gpus)) or 'none'}")
    return gpus[request.gpu]


def parse(text: str) -> dict[int, GpuTarget]:
    """GPUs by index, from the tool's table. Raises UnhealthyError for a GPU that lacks a value (`[N/A]`)."""
    gpus = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        try:
            index, *figures = int(cells[0]), *map(float, cells[1:])
            gpus[index] = GpuTarget(index, *figures)
        except (ValueError, TypeError):
            raise UnhealthyError(
                f"nvidia-smi printed {line!r}, which lacks a number for some field; this GPU is not supported"
            ) from None
    return gpus


def parse_xid(text: str) -> float:
    """The newest error's number in what `dcgmi dmon` prints; 0 for none. Raises UnhealthyError for another table."""
    rows = [line.split() for line in text.splitlines() if line.startswith("GPU")]
    if not rows:
        return 0.0
    # `GPU`, its number, and the value.
    value = rows[-1][2] if len(rows[-1]) > 2 else ""
    try:
        return 0.0 if value == "N/A" else float(whole_number(value))
    except DecodingError:
        raise UnhealthyError(f"dcgmi printed {' '.join(rows[-1])!r}, where the number of an XID is expected") from None
