"""The simulated accelerator of ranks on hosts without a GPU.

A rank computes by sleeping (see `workload.controls`). The g-th rank of each job on a host has accelerator g. Clock and
power are those of the H100 SXM data sheet.
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
_RING = re.compile(r"([0-9]{1,9})\.ring")


class AcceleratorTarget(msgspec.Struct, frozen=True):
    """The ranks that compute on accelerator `index`."""

    index: int
    ranks: tuple[ProcessTarget, ...]

    @property
    def listing(self) -> dict[str, str]:
        """Empty: no setting outlives a fault."""
        return {}


def examine(request: FaultRequest) -> AcceleratorTarget:
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
        return CLOCK_MHZ / request.number("clock_mhz")
    if "limit_w" in request.parameters:
        return float((POWER_W / request.number("limit_w")) ** (1 / 3))
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
