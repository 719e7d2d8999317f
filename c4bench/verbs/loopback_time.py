"""What happens to unanswered loopback writes as time goes by: retransmissions, and packets that come late."""

import threading
import time
from collections.abc import Callable
from typing import Protocol

_STEP_S = 0.0005


class Unanswered(Protocol):
    """A connection with writes that have no answer yet."""

    def retry(self, now_s: float) -> bool:
        """Try again what is due; False when nothing is left to try."""


class Retransmission:
    """One thread that looks after all connections with unanswered writes, while there are any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[Unanswered] = []
        self._later: list[tuple[float, Callable[[], None]]] = []
        self._running = False

    def add(self, connection: Unanswered) -> None:
        """Retry this connection's writes from now on."""
        with self._lock:
            if connection not in self._waiting:
                self._waiting.append(connection)
            self._run()

    def after(self, delay_s: float, do: Callable[[], None]) -> None:
        """Do something a little later."""
        with self._lock:
            self._later.append((time.monotonic() + delay_s, do))
            self._run()

    def _run(self) -> None:
        if not self._running:
            self._running = True
            threading.Thread(target=self._look_after, daemon=True, name="loopback-retransmission").start()

    def _look_after(self) -> None:
        while True:
            time.sleep(_STEP_S)
            now_s = time.monotonic()
            with self._lock:
                waiting = list(self._waiting)
                due = [entry for entry in self._later if entry[0] <= now_s]
                self._later = [entry for entry in self._later if entry[0] > now_s]
            for _, do in due:
                do()
            done = [connection for connection in waiting if not connection.retry(now_s)]
            with self._lock:
                self._waiting = [connection for connection in self._waiting if connection not in done]
                if not self._waiting and not self._later:
                    self._running = False
                    return
