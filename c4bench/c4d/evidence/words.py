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


def ras_words(diagnosis: Diagnosis) -> str:
    """The word of RAS's warning; empty where it has none."""
    return _RAS.get(diagnosis.cause, "") if diagnosis.cause else ""
