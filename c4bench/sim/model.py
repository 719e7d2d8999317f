"""What is simulated: a job, what its ranks do each iteration, and the faults that befall them."""

import math
from enum import StrEnum

import msgspec


class SimOp(msgspec.Struct, frozen=True):
    """A collective of every iteration: `compute_s` of computing, then `kind` over `size_bytes` a rank.

    `kind` is all_reduce (ring, 2(n-1) steps of size/n) or all_to_all (linear shift, n-1 steps of size/n).
    """

    kind: str
    size_bytes: int
    compute_s: float


class SimJob(msgspec.Struct, frozen=True):
    """A job of `ranks` ranks, rank r alone on host `hR` with the NIC `hR/0`.

    `jitter` is the relative standard deviation of computing. With `credits` a sender waits until its receiver has come
    to the same step; without, messages for a receiver queue at its NIC. `clock_offsets_s` are added to what each host
    writes. `exit_after_s` is how long after its message got stuck a rank gives up with a transport error. Without
    `process_info` the agents do not report processes.
    """

    ranks: int
    ops: tuple[SimOp, ...]
    name: str = "job"
    rate_bps: float = 10e9
    jitter: float = 0.01
    credits: bool = True
    seed: int = 0
    window_s: float = 0.1
    clock_offsets_s: tuple[float, ...] = ()
    exit_after_s: float = math.inf
    process_info: bool = True


class SimFaultKind(StrEnum):
    """What can befall a job."""

    NIC_RATE = "nic_rate"
    PATH_RATE = "path_rate"
    COMPUTE = "compute"
    STOPPED = "stopped"
    KILLED = "killed"


class SimFault(msgspec.Struct, frozen=True):
    """A fault of `rank` from `at_s` until `until_s`.

    `factor` multiplies the rate of the NIC's `side` (nic_rate) or of the path to `peer` (path_rate), or the time to
    compute (compute). A stopped rank goes on at `until_s`; a killed one never does.
    """

    kind: SimFaultKind
    rank: int
    at_s: float
    until_s: float = math.inf
    factor: float = 1.0
    side: str = ""
    peer: int = -1
