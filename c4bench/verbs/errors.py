"""What goes wrong on a device, by name."""

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
    """Turn what pyverbs raises into a VerbsError that says what was being done on which device."""
    from pyverbs.pyverbs_error import PyverbsError  # noqa: PLC0415  (the error class must import without pyverbs)

    try:
        yield
    except PyverbsError as error:
        raise failure(device, doing, error, qp) from error


def failure(device: str, doing: str, error: Exception, qp: int = 0) -> VerbsError:
    """What `verbs` raises, for where a context manager a call is too dear."""
    where = f"QP {qp} on {device}" if qp else device
    reason = " ".join(str(error).split())
    return VerbsError(f"{where}: {doing} failed: {reason}", device=device, status=reason, qp=qp)
