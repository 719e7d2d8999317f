"""A job of `nccl_rank.py` processes, one on each of as many hosts."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import nccl_rank
from attached_watch import Watch
from nccl_rank import Config

RANK = nccl_rank.__file__


class NcclJob(Watch):
    """Processes that are killed at the end."""

    def __init__(
        self,
        plugin: Path,
        folder: Path,
        size: int = 4,
        own: dict[int, dict[str, object]] | None = None,
        **usual: object,
    ) -> None:
        super().__init__(folder, size)
        self.processes = []
        for rank in range(size):
            places = {"rank": rank, "size": size, "plugin": str(plugin), "folder": str(folder)}
            config = msgspec.convert(places | usual | (own or {}).get(rank, {}), Config)
            names = {"C4BENCH_JOB": "train", "RANK": str(rank)}
            environment = {**os.environ, **names, "C4BENCH_ATTACH_RECORDS": str(folder)}
            command = [sys.executable, RANK, msgspec.json.encode(config).decode()]
            self.processes.append(subprocess.Popen(command, env=environment))

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        for process in self.processes:
            process.kill()
            process.wait()
