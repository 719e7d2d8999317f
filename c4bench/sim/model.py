"""What is simulated: a job, what its ranks do each iteration, and the faults that befall them."""

import math
from enum import StrEnum

import msgspec

from c4bench.model.step import StepOp


class SimJob(msgspec.Struct, frozen=True):
    """A job of `ranks` ranks, `ranks_per_host` on each host, rank r with a NIC of its own.

    Rank r is on host `hR`, R = r // ranks_per_host, with NIC `hR/I`, I = r % ranks_per_host. `jitter` is the relative
    standard deviation of computing. With `credits` a sender waits until its receiver has come to the same step;
    without, messages for a receiver queue at its NIC. `clock_offsets_s` are added to what each host writes.
    `exit_after_s` is how long after its message got stuck a rank gives up with a transport error; with `told` every
    other rank then exits a millisecond later, as those of a communicator do that hear of a failure. Without
    `process_info` the agents do not report processes.
    """

    ranks: int
    ops: tuple[StepOp, ...]
    name: str = "job"
    rate_bps: float = 10e9
    jitter: float = 0.01
    credits: bool = True
    seed: int = 0
    window_s: float = 0.1
    clock_offsets_s: tuple[float, ...] = ()
    exit_after_s: float = math.inf
    process_info: bool = True
    ranks_per_host: int = 1
    told: bool = False


class SimFaultKind(StrEnum):
    """What can befall a job."""

    NIC_RATE = "nic_rate"
    PATH_RATE = "path_rate"
    COMPUTE = "compute"
    STOPPED = "stopped"
    HUNG = "hung"
    KILLED = "killed"
    RAISED = "raised"
    MISMATCH = "mismatch"


class SimFault(msgspec.Struct, frozen=True):
    """A fault of `rank` from `at_s` until `until_s`.

    `factor` multiplies the rate of the NIC's `side` (nic_rate) or of the path to `peer` (path_rate), or the time to
    compute (compute). What is sent over a rate of zero is carried at `until_s`. A stopped or hung rank goes on at
    `until_s` (only the stopped one's process says so); a killed one never does, nor one that raised an error of its
    own. With mismatch the rank calls another collective than its peers.
    """

    kind: SimFaultKind
    rank: int
    at_s: float
    until_s: float = math.inf
    factor: float = 1.0
    side: str = ""
    peer: int = -1
