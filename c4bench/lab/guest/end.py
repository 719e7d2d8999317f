"""End a lab: write its result for the machine, end every process, then the kernel."""

import ctypes
import os
import signal
import sys
import time
from pathlib import Path

import msgspec

from c4bench.lab.spec import RESULT_FILE, LabResult

_POWER_OFF = 0x4321FEDC
_SYSLOG_READ_ALL = 3


def failed(error: Exception) -> LabResult:
    """The result of a lab that did not come up."""
    return LabResult(exit_code=3, ready_s=0.0, ended_s=time.monotonic(), error=str(error))


def end(home: Path, result: LabResult) -> None:
    """Write the result and the kernel's log to `home`, and power off."""
    (home / "dmesg.log").write_bytes(kernel_messages())
    (home / RESULT_FILE).write_bytes(msgspec.json.encode(result))
    power_off()


def kernel_messages() -> bytes:
    """What the kernel has logged since it booted."""
    buffer = ctypes.create_string_buffer(1 << 18)
    length = ctypes.CDLL(None).klogctl(_SYSLOG_READ_ALL, buffer, len(buffer))
    return buffer.raw[: max(0, length)]


def power_off() -> None:
    """End every process, then the kernel."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.kill(-1, signal.SIGKILL)
    sys.stdout.flush()
    ctypes.CDLL(None).reboot(_POWER_OFF)
