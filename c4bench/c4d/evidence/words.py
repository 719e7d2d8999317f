"""What other tools call a verdict: PyTorch's torchfrtrace (`MatchState`), and the warnings of NCCL's RAS."""

from c4bench.model.diagnosis import Cause, Diagnosis

_MATCH_STATES = {
    Cause.COLLECTIVE_TYPE_MISMATCH: "COLLECTIVE_TYPE_MISMATCH",
    Cause.COLLECTIVE_DTYPE_MISMATCH: "COLLECTIVE_DTYPE_MISMATCH",
    Cause.SIZE_OR_SYNTAX_MISMATCH: "SIZE_OR_SYNTAX_MISMATCH",
    Cause.STUCK_INSIDE: "COLLECTIVE_STATE_MISMATCH",
}
_RAS = {
    Cause.NOT_ENTERED: "MISMATCH",
    Cause.COLLECTIVE_TYPE_MISMATCH: "MISMATCH",
    Cause.PROCESS_ENDED: "DEAD",
    Cause.PROCESS_STOPPED: "INCOMPLETE",
}


def torchfrtrace_words(diagnosis: Diagnosis, no_file: tuple[int, ...]) -> str:
    """What torchfrtrace prints where it comes to the same; empty where it has no word for it."""
    if diagnosis.cause is Cause.NOT_ENTERED:
        return "Missing dump files from ranks" if no_file else "Not all ranks joining collective"
    return _MATCH_STATES.get(diagnosis.cause, "") if diagnosis.cause else ""


_STACKS = "stacks of these ranks (py-spy dump, gdb) and the counters of their NICs"
_TOLD_BY = {
    Cause.NOT_ENTERED: "stacks of these ranks (py-spy dump), and the files of those that left none",
    Cause.STUCK_INSIDE: _STACKS,
    Cause.PROCESS_STOPPED: "the same question again after 10 s: RAS then answers for who was only late or cut off",
    Cause.PROCESS_ENDED: "the exit codes and kernel logs of these processes' hosts",
    Cause.COMPUTE_SLOW: "clocks and temperatures of that rank's GPU beside another's",
}
_AGAIN = "a second report of RAS after 10 s or more: who has called nothing since hangs, who has was only late"


def telling_words(diagnosis: Diagnosis, *, counted: bool) -> str:
    """What would tell suspects apart, or make one sure. `counted`: of ranks only counts of calls are known."""
    if diagnosis.cause is Cause.NOT_ENTERED and counted:
        return _AGAIN
    return _TOLD_BY.get(diagnosis.cause, _STACKS) if diagnosis.cause else _STACKS


def ras_words(diagnosis: Diagnosis) -> str:
    """The word of RAS's warning; empty where it has none."""
    return _RAS.get(diagnosis.cause, "") if diagnosis.cause else ""
