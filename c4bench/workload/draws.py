"""Run the same operations on new connections repeatedly, with ECMP, planned and sprayed paths: samples of hashing."""

import time

import msgspec

from c4bench.collective.options import Options
from c4bench.errors import UsageError
from c4bench.model.fabric import ECN_BITS
from c4bench.verbs.transport import PROFILES, TransportProfile
from c4bench.workload.context import RankContext

_QUESTIONS = 2
_ANSWER_S = 0.05
# rxe takes every NAK for a failed retry until the message is acknowledged, except with this count.
_ENDLESS = 7
# After one NAK, rxe ignores others until something is acknowledged, and waits for its timer: the profile's (0), or one
# of 1 ms, which is less than rxe's shortest.
_SPRAY_TIMEOUTS = {"sprayed": 0, "sprayed-short": 8}


class Draws(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One draw for each of `rounds`: `ecmp`, `planned` or `sprayed`, and after a slash a connection's number of QPs.

    With `sprayed-short` packets are sprayed too, and the acknowledgement timer is as short as it can be.

    The number is 1 if there is none; 0 leaves it to C4P, and `same` is as many as C4P chose last.

    All jobs of the job's meeting measure at the same time. An operation of `warm_up_bytes` connects before the
    measurement. With `compute_s` every timed operation is a training step that begins with that much computing.
    Switches spray packets of `spray_dscp`.
    """

    size_bytes: int
    rounds: tuple[str, ...]
    operations: int = 1
    warm_up_bytes: int = 1 << 20
    compute_s: float = 0.0
    profile: str = "patient"
    staging_bytes: int = Options().staging_bytes
    spray_dscp: int = 0

    def transport(self, paths: str) -> TransportProfile:
        """The profile of a round. UsageError for `sprayed` without a DSCP."""
        profile = PROFILES[self.profile]
        if paths not in _SPRAY_TIMEOUTS:
            return profile
        if not self.spray_dscp:
            raise UsageError("rounds: `sprayed` needs spray_dscp, the DSCP of the packets that switches spray")
        return msgspec.structs.replace(
            profile,
            timeout=_SPRAY_TIMEOUTS[paths] or profile.timeout,
            retries=_ENDLESS,
            traffic_class=self.spray_dscp << ECN_BITS,
        )


def run(context: RankContext) -> None:
    """Report one `draw` for each round: how long its timed operations took."""
    parameters = context.parameters(Draws)
    chosen_qps = 1
    for number, how in enumerate(parameters.rounds):
        paths, _, qps = how.partition("/")
        options = Options(
            paths="ecmp" if paths in _SPRAY_TIMEOUTS else paths,
            qps=chosen_qps if qps == "same" else int(qps or 1),
            profile=parameters.transport(paths),
            staging_bytes=parameters.staging_bytes,
        )
        # All connections of the last round are closed before any of this round is opened.
        context.meet(f"free{number}")
        context.meet(f"open{number}")
        with context.communicator(f"draw{number}", options) as comm:
            if qps == "0":
                chosen_qps = comm.qps
            array = comm.empty(parameters.size_bytes // 4, "float32")
            comm.all_reduce(array[: parameters.warm_up_bytes // 4])
            context.meet(f"draw{number}")
            # Apply C4P's guidance before timing: the answer to the last request, and to the request that follows it.
            for _ in range(_QUESTIONS):
                comm.barrier()
                time.sleep(_ANSWER_S)
            comm.barrier()
            began = time.monotonic()
            for _ in range(parameters.operations):
                if parameters.compute_s:
                    context.controls.compute(parameters.compute_s)
                comm.all_reduce(array)
            took_s = time.monotonic() - began
            context.meet(f"end{number}")
        context.report("draw", number=number, took_s=took_s)
