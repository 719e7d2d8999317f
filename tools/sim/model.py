"""The input of a simulation: a job and its faults."""

import math
from enum import StrEnum

import msgspec

from c4bench.model.step import StepOp


class SimJob(msgspec.Struct, frozen=True):
    """A job of `ranks` ranks, `ranks_per_host` on each host, each rank with its own NIC.

    Rank r is on host `hR`, R = r // ranks_per_host, with NIC `hR/I`, I = r % ranks_per_host. `jitter` is the relative
    standard deviation of computing. With `credits` a sender waits until its receiver has reached the same step;
    without, messages for a receiver queue at its NIC. `clock_offsets_s` are added to the times that each host writes.
    A rank exits with a transport error `exit_after_s` after its message got stuck. With `notify_failure` every other
    rank exits a millisecond later, as in a communicator. With `ecn` NICs count packets that come marked: all that have
    crossed a path or a NIC that carries less than its rate.
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
    ranks_per_host: int = 1
    notify_failure: bool = False
    ecn: bool = False


class SimFaultKind(StrEnum):
    """The kinds of simulated faults."""

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
    compute (compute). A message over a rate of zero is sent at `until_s`. A stopped or hung rank continues at
    `until_s` (only the process of the stopped rank shows as stopped); a rank that is killed or has raised an error
    does not. With mismatch the rank calls `call` in place of the collective of its peers; a barrier has no data.
    """

    kind: SimFaultKind
    rank: int
    at_s: float
    until_s: float = math.inf
    factor: float = 1.0
    side: str = ""
    peer: int = -1
    call: str = "barrier"
