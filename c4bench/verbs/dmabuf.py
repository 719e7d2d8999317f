"""Register memory of other devices, such as GPUs, as DMA-BUF."""

import errno
from typing import Any

from pyverbs.mr import DmaBufMR
from pyverbs.pyverbs_error import PyverbsError, PyverbsRDMAError

from c4bench.verbs.errors import VerbsError
from c4bench.verbs.path_control import OpenDevice

_NO_BUFFER = -1
_REASONS = {
    errno.EOPNOTSUPP: "its driver does not register DMA-BUF memory",
    errno.EBADF: "the descriptor is not a DMA-BUF",
    errno.EINVAL: "the range is not one of the buffer's, or the exporter cannot share it with this device",
}


def obstacle(device: OpenDevice) -> str:
    """Why `device` cannot register DMA-BUF memory; empty if it can.

    The trial uses an invalid descriptor: a driver with DMA-BUF support rejects that with EBADF.
    """
    try:
        DmaBufMR(device.pd, 1, 0, dmabuf=_NO_BUFFER)
    except PyverbsError as error:
        return "" if _code(error) == errno.EBADF else _reason(error)
    return ""


def register(device: OpenDevice, access: int, fd: int, offset: int, length: int) -> Any:  # noqa: ANN401  (a pyverbs MR)
    """Register `length` bytes at `offset` of the DMA-BUF `fd`; work requests address them from `offset` on.

    Raises VerbsError with the reason if the device cannot.
    """
    try:
        return DmaBufMR(device.pd, length, access, dmabuf=fd, offset=offset)
    except PyverbsError as error:
        reason = _reason(error)
        raise VerbsError(
            f"{device.name}: cannot register {length} bytes at {offset} of DMA-BUF {fd}: {reason}",
            device=device.name,
            status=reason,
        ) from error


def _code(error: PyverbsError) -> int:
    return int(error.error_code) if isinstance(error, PyverbsRDMAError) else 0


def _reason(error: PyverbsError) -> str:
    return _REASONS.get(_code(error), " ".join(str(error).split()))
