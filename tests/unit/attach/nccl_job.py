"""A job of `nccl_rank.py` processes, one on each of as many hosts, and its telemetry as an agent would send it."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
from nccl_rank import Config

from c4bench.attach.nccl import Assembler
from c4bench.c4d.offline import detect
from c4bench.collective.ring_reader import TelemetryReader
from c4bench.model.diagnosis import Diagnosis
from c4bench.model.window import Numbering, Window

RANK = Path(__file__).with_name("nccl_rank.py")
CADENCE_S = 0.1


class NcclJob:
    """Processes of ranks on `h0`, `h1`, ...; `windows` is the recording, `partial` each host's latest as it is read."""

    def __init__(
        self,
        plugin: Path,
        folder: Path,
        size: int = 4,
        own: dict[int, dict[str, object]] | None = None,
        **usual: object,
    ) -> None:
        self.folder = folder
        self.windows: list[Window] = []
        self.partial: dict[str, Window] = {}
        self._assembler = Assembler()
        self._hosts = [(f"h{rank}", Numbering()) for rank in range(size)]
        self._readers: dict[int, TelemetryReader] = {}
        self._tick, self._last_s = 0, time.time()
        self.processes = []
        for rank in range(size):
            places = {"rank": rank, "size": size, "plugin": str(plugin), "folder": str(folder)}
            config = msgspec.convert(places | usual | (own or {}).get(rank, {}), Config)
            names = {"C4BENCH_HOST": f"h{rank}", "C4BENCH_JOB": "train", "RANK": str(rank)}
            environment = {**os.environ, **names, "C4BENCH_ATTACH_RECORDS": str(folder)}
            command = [sys.executable, str(RANK), msgspec.json.encode(config).decode()]
            self.processes.append(subprocess.Popen(command, env=environment))

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        for process in self.processes:
            process.kill()
            process.wait()

    def ring(self, rank: int) -> Path:
        """The telemetry file of a rank."""
        return self.folder / f"{self.processes[rank].pid}.nccl.ring"

    def watch(self, seconds: float) -> None:
        """Record so much."""
        for _ in range(round(seconds / CADENCE_S)):
            time.sleep(max(0.0, self._last_s + CADENCE_S - time.time()))
            start_s, self._last_s = self._last_s, time.time()
            self.windows += [self._window(rank, start_s, self._last_s) for rank in range(len(self._hosts))]
            self._tick += 1

    def until_entered(self, number: int, patience_s: float = 60.0) -> None:
        """Record until a rank has entered this operation."""
        end_s = time.time() + patience_s
        while not any(op.seq >= number for window in self.windows[-1:] for op in window.ops):
            assert time.time() < end_s
            self.watch(CADENCE_S)

    def diagnoses(self) -> list[Diagnosis]:
        """What C4D says of the recording."""
        return detect(self.windows)

    def until(self, says: Callable[[Diagnosis], bool], patience_s: float = 60.0) -> Diagnosis:
        """Record until C4D says this last, or patience ends; returns what it has said last."""
        end_s = time.time() + patience_s
        while not (diagnoses := self.diagnoses()) or not says(diagnoses[-1]):
            assert time.time() < end_s, diagnoses
            self.watch(0.5)
        return diagnoses[-1]

    def _window(self, rank: int, start_s: float, end_s: float) -> Window:
        host, numbering = self._hosts[rank]
        if rank not in self._readers and self.ring(rank).exists():
            self._readers[rank] = TelemetryReader(self.ring(rank), numbering)
        tables = self._readers[rank].read(start_s) if rank in self._readers else ((b"",) * 4)
        self.partial[host] = Window(host, self._tick, start_s, end_s, numbering.names, (), *tables)
        return self._assembler.assemble(self.partial[host])
