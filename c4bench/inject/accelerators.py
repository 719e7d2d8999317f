"""The accelerator that ranks of this project compute on where there is no GPU: simulated, by the rank's own controls.

A rank's computing is a sleep (see `workload.controls`), and the g-th rank of each job on a host has accelerator g. Its
figures are those of an H100 SXM's data sheet.
"""

import re
from contextlib import suppress

import msgspec

from c4bench.errors import UsageError
from c4bench.inject import processes
from c4bench.inject.processes import ProcessTarget
from c4bench.model.fault import FaultRequest

CLOCK_MHZ = 1980.0
POWER_W = 700.0
_RING = re.compile(r"(\d+)\.ring")


class AcceleratorTarget(msgspec.Struct, frozen=True):
    """The ranks that compute on it."""

    index: int
    ranks: tuple[ProcessTarget, ...]

    @property
    def listing(self) -> dict[str, str]:
        """Nothing that outlives a fault."""
        return {}


def examine(request: FaultRequest) -> AcceleratorTarget:
    """Raises UsageError when nobody computes on it."""
    found = []
    for rank in _ranks(request):
        with suppress(UsageError):  # it has ended
            found.append(processes.find(rank))
    if not found:
        raise UsageError(
            f"{request.host} has no GPU {request.gpu}: no nvidia-smi is there, and no rank computes on a simulated one"
        )
    return AcceleratorTarget(request.gpu or 0, tuple(found))


def as_rank(request: FaultRequest) -> FaultRequest:
    """The same for a rank that feels it, slowed by a `factor`: who looks at ranks can look at that one."""
    found = next((rank for rank in _ranks(request) if _alive(rank)), None)
    if found is None:
        return msgspec.structs.replace(request, job="none", rank=0)
    return msgspec.structs.replace(found, parameters={**request.parameters, "factor": slowdown(request)})


def slowdown(request: FaultRequest) -> float:
    """By how much computing takes longer: as the clock is lower, and power goes with the cube of the clock."""
    if "clock_mhz" in request.parameters:
        return CLOCK_MHZ / request.number("clock_mhz")
    if "limit_w" in request.parameters:
        return float((POWER_W / request.number("limit_w")) ** (1 / 3))
    return 1.0


def _ranks(request: FaultRequest) -> list[FaultRequest]:
    """A request for each rank that has this accelerator, job by job."""
    found = []
    for job in sorted(path for path in processes.rings().glob("*") if path.is_dir()):
        numbers = sorted(int(match[1]) for path in job.iterdir() if (match := _RING.fullmatch(path.name)))
        found += [
            msgspec.structs.replace(request, gpu=None, job=job.name, rank=number)
            for number in numbers[request.gpu or 0 : (request.gpu or 0) + 1]
        ]
    return found


def _alive(rank: FaultRequest) -> bool:
    try:
        processes.find(rank)
    except UsageError:
        return False
    return True
