"""A master whose processor time is sampled by stage: `python intake_master.py FOLDER PORT WARM_UP_S SECONDS`.

It is run by its path, so that it measures the `c4bench` that the interpreter finds, which may be another checkout's. It
therefore uses the master's outer interface only. Prints a line once it serves, then reads when agents' times begin
(seconds since the epoch); prints a `Reading` at the end.
"""

import asyncio
import gc
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

import msgspec

from c4bench.control.master import Master
from c4bench.control.parts import Parts, compose
from c4bench.control.state.store import Store
from c4bench.model.event import AgentMissing

# Of the process's own time. The kernel's timer is coarser on some machines; shares do not depend on it.
_SAMPLE_S = 0.001
_LOOK_S = 0.05
_PACKAGES = {"wire/peer.py": "decoding", "record/": "recording", "control/": "routing", "c4p/": "routing"}
_TRANSPORT = ("/websockets/", "/asyncio/", "/ssl.py", "/selectors.py", "c4bench/wire/")
STAGES = ("transport", "decoding", "routing", "feeding", "filing", "judging", "recording", "gc")


class Reading(msgspec.Struct, frozen=True):
    """What a master took for `windows` windows in `seconds`.

    `cpu_s` is its processor time, of which `shares` have each stage's share. `lag_s` are ages of the newest window that
    has been evaluated of the host that is furthest behind. `missing` agents were called missing.
    `idle_bytes` and `resident_bytes` are its resident memory before agents connected, and at the end.
    """

    windows: int
    seconds: float
    cpu_s: float
    shares: dict[str, float]
    lag_s: tuple[float, ...]
    missing: int
    idle_bytes: int
    resident_bytes: int


def stage(stack: Sequence[tuple[str, str]]) -> str:
    """The stage of a stack of (file, function), innermost first."""
    for file, function in stack:
        if function == _Samples.collected.__name__:
            return "gc"
        if "c4bench/c4d/" in file:
            return _detector_stage(stack)
        package = next((name for part, name in _PACKAGES.items() if f"c4bench/{part}" in file), None)
        if package or any(part in file for part in _TRANSPORT):
            return package or "transport"
    return "transport"


def _detector_stage(stack: Sequence[tuple[str, str]]) -> str:
    for name, found in (("flush", "filing"), ("evaluate", "judging")):
        if any(function == name and "c4bench/c4d/" in file for file, function in stack):
            return found
    return "feeding"


def _stack(frame: FrameType | None) -> Iterator[tuple[str, str]]:
    while frame is not None:
        yield frame.f_code.co_filename, frame.f_code.co_name
        frame = frame.f_back


class _Samples:
    """Counts where the process is, each time that it has computed for another millisecond."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        gc.callbacks.append(self.collected)
        signal.signal(signal.SIGPROF, self._sample)
        signal.setitimer(signal.ITIMER_PROF, _SAMPLE_S, _SAMPLE_S)

    def collected(self, phase: str, _: dict[str, int]) -> None:
        """Called around each collection; a signal that came within it is handled here, before this returns."""

    def _sample(self, _: int, frame: FrameType | None) -> None:
        self.counts[stage(tuple(_stack(frame)))] += 1


class _Watch:
    """Waits beside the master's event loop, on a thread of its own, and measures."""

    def __init__(self, parts: Parts, samples: _Samples, warm_up_s: float, seconds: float) -> None:
        self._parts, self._samples = parts, samples
        self._warm_up_s, self._seconds = warm_up_s, seconds
        self._idle_bytes = _resident_bytes()
        self.reading: Reading | None = None

    def run(self) -> None:
        """Wait for the beginning, and measure."""
        begin_s = float(sys.stdin.readline())
        time.sleep(max(0.0, begin_s + self._warm_up_s - time.time()))
        counts, windows = self._samples.counts.copy(), self._windows()
        began_s, cpu_s = time.monotonic(), time.process_time()
        lag_s = tuple(self._lags(begin_s, began_s + self._seconds))
        cpu_s, seconds = time.process_time() - cpu_s, time.monotonic() - began_s
        sampled = self._samples.counts - counts
        shares = {name: sampled[name] / max(1, sampled.total()) for name in STAGES}
        windows, missing = self._windows() - windows, self._missing()
        self.reading = Reading(windows, seconds, cpu_s, shares, lag_s, missing, self._idle_bytes, _resident_bytes())

    def _windows(self) -> int:
        return sum(dict(self._parts.telemetry.windows).values())

    def _missing(self) -> int:
        return sum(isinstance(event, AgentMissing) for event in list(self._parts.log.events))

    def _lags(self, begin_s: float, until_s: float) -> Iterator[float]:
        """The age of the oldest host's newest window, of those that had come when telemetry was last evaluated."""
        evaluated_s: float | None = None
        end_s = 0.0
        while time.monotonic() < until_s:
            if self._parts.telemetry.evaluated_s != evaluated_s:
                evaluated_s = self._parts.telemetry.evaluated_s
                end_s = min(dict(self._parts.telemetry.window_ends_s).values(), default=0.0)
            yield time.time() - begin_s - end_s
            time.sleep(_LOOK_S)


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def measure(folder: Path, port: int, warm_up_s: float, seconds: float) -> Reading:
    """Serve, with certificates and state in `folder`, until enough has been measured."""
    parts = compose(Store(folder / "state"))
    master = Master(parts, folder, "127.0.0.1", port)
    watch = _Watch(parts, _Samples(), warm_up_s, seconds)
    loop = asyncio.get_running_loop()

    def follow() -> None:
        watch.run()
        loop.call_soon_threadsafe(master.leave)

    def ready() -> None:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        threading.Thread(target=follow, daemon=True).start()

    await master.run(ready)
    assert watch.reading
    return watch.reading


if __name__ == "__main__":
    directory, at_port, warm_up, duration = sys.argv[1:]
    found = asyncio.run(measure(Path(directory), int(at_port), float(warm_up), float(duration)))
    sys.stdout.write(msgspec.json.encode(found).decode() + "\n")
