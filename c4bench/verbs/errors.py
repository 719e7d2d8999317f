"""Errors of verbs."""

from collections.abc import Iterator
from contextlib import contextmanager

from c4bench.errors import C4Error


class VerbsError(C4Error):
    """A verb or a work request failed. `status` is the completion status (`RETRY_EXC_ERR`) or the errno's text."""

    def __init__(self, message: str, *, device: str, status: str = "", qp: int = 0) -> None:
        super().__init__(message)
        self.device = device
        self.status = status
        self.qp = qp


@contextmanager
def verbs(device: str, doing: str, qp: int = 0) -> Iterator[None]:
    """Turn a pyverbs exception into a VerbsError that names the action and the device."""
    from pyverbs.pyverbs_error import PyverbsError  # noqa: PLC0415  (the error class must import without pyverbs)

    try:
        yield
    except PyverbsError as error:
        raise failure(device, doing, error, qp) from error


def failure(device: str, doing: str, error: Exception, qp: int = 0) -> VerbsError:
    """The error that `verbs` raises, for hot paths where a context manager costs too much."""
    where = f"QP {qp} on {device}" if qp else device
    reason = " ".join(str(error).split())
    return VerbsError(f"{where}: {doing} failed: {reason}", device=device, status=reason, qp=qp)
