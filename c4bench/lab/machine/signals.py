"""Let SIGTERM and SIGHUP end a lab as Ctrl-C does: what has been made for it is removed before the program ends."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

_ENDING = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def unwinding() -> Iterator[None]:
    """While the block runs, SIGTERM and SIGHUP raise SystemExit with a shell's exit code, 128 + signal.

    A signal that is ignored, as SIGHUP is under `nohup`, stays ignored. Outside the main thread, where Python lets
    nobody handle signals, nothing changes.
    """
    ours = threading.current_thread() is threading.main_thread()
    numbers = [number for number in _ENDING if ours and signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, _exit) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _exit(number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)
