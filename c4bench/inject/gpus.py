"""The state of a GPU, from `nvidia-smi`, and the simulated accelerator of ranks on hosts without a GPU.

A rank computes by sleeping (see `workload.controls`). The g-th rank of each job on a host has accelerator g. Clock and
power are those of the H100 SXM data sheet.
"""

import re
import shutil
from contextlib import suppress

import msgspec

from c4bench.decoding import DecodingError, whole_number
from c4bench.errors import UnhealthyError, UsageError
from c4bench.inject import processes
from c4bench.inject.actions import run
from c4bench.inject.processes import ProcessTarget
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


SIMULATED_CLOCK_MHZ = 1980.0
SIMULATED_POWER_W = 700.0
_RING = re.compile(r"([0-9]{1,9})\.ring")


class AcceleratorTarget(msgspec.Struct, frozen=True):
    """The ranks that compute on accelerator `index`."""

    index: int
    ranks: tuple[ProcessTarget, ...]

    @property
    def listing(self) -> dict[str, str]:
        """Empty: no setting outlives a fault."""
        return {}


def examine_simulated(request: FaultRequest) -> AcceleratorTarget:
    """Find the ranks that compute on it. Raises UsageError when there are none."""
    ranks = []
    for rank in _ranks(request):
        with suppress(UsageError):  # it has ended
            ranks.append(processes.find(rank))
    if not ranks:
        raise UsageError(
            f"{request.host} has no GPU {request.gpu}: nvidia-smi is not installed, and no rank computes on a "
            "simulated GPU; start a job there"
        )
    return AcceleratorTarget(request.gpu or 0, tuple(ranks))


def as_rank(request: FaultRequest) -> FaultRequest:
    """The request for a running rank on the accelerator, with its `factor`, so that a rank's witness can be used."""
    first = next((rank for rank in _ranks(request) if _alive(rank)), None)
    if first is None:
        return msgspec.structs.replace(request, job="none", rank=0)
    return msgspec.structs.replace(first, parameters={**request.parameters, "factor": slowdown(request)})


def slowdown(request: FaultRequest) -> float:
    """The factor by which computing takes longer. Power is taken to grow with the cube of the clock."""
    if "clock_mhz" in request.parameters:
        return SIMULATED_CLOCK_MHZ / request.number("clock_mhz")
    if "limit_w" in request.parameters:
        return float((SIMULATED_POWER_W / request.number("limit_w")) ** (1 / 3))
    return 1.0


def _ranks(request: FaultRequest) -> list[FaultRequest]:
    """A request for each rank on this accelerator, one per job."""
    requests = []
    for job, files in processes.ranks_here().items():
        numbers = sorted(int(match[1]) for name in files if (match := _RING.fullmatch(name)))
        requests += [
            msgspec.structs.replace(request, gpu=None, job=job, rank=number)
            for number in numbers[request.gpu or 0 : (request.gpu or 0) + 1]
        ]
    return requests


def _alive(rank: FaultRequest) -> bool:
    try:
        processes.find(rank)
    except UsageError:
        return False
    return True
