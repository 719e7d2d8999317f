"""Programs that post and poll on a device that carries nothing, under the preloaded library."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from c4bench.attach import build, records
from c4bench.collective.ring_reader import read_telemetry_file

HERE = Path(__file__).parent
HEADER = Path("/usr/include/infiniband/verbs.h")
COMPILER = ("gcc", "-std=c11", "-D_DEFAULT_SOURCE", "-Wall", "-Wextra", "-Werror", "-O2")


class Driver:
    """A running driver: what it has printed, and its records. It ends with the block."""

    def __init__(self, process, folder):
        self.said = []
        while (line := process.stdout.readline().strip()) and line != "done":
            self.said.append(line)
        self.pid, self._folder, self.process = process.pid, folder, process

    @property
    def telemetry(self):
        return read_telemetry_file(self._folder / f"{self.pid}.ring")

    @property
    def queue_pairs(self):
        return records.queue_pairs(self._folder / f"{self.pid}.ring")


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """The folder of the compiled driver and of its libibverbs."""
    if not shutil.which("gcc") or not HEADER.exists():
        pytest.skip("no-compiler: install gcc and libibverbs-dev")
    build.build()
    place = tmp_path_factory.mktemp("driver")
    library = place / "libibverbs.so.1"
    shared = ("-fPIC", "-shared", "-Wl,-soname,libibverbs.so.1", "-Wl,--version-script=fake_verbs.map")
    subprocess.run([*COMPILER, *shared, "-o", library, "fake_verbs.c"], cwd=HERE, check=True)
    for name in ("driver", "cost"):
        subprocess.run([*COMPILER, "-o", place / name, f"{name}.c", library], cwd=HERE, check=True)
    return place


@pytest.fixture
def folder(tmp_path):
    """The folder of records."""
    (tmp_path / "records").mkdir()
    return tmp_path / "records"


@pytest.fixture
def driver(built, folder):
    """Start a driver; it waits, once it has done its part, until the test ends."""
    started = []

    def start(what, *, program="driver", **environment):
        library = build.library("verbs")
        environment = {"C4BENCH_ATTACH_SOCKET": str(folder.parent / "agent")} | environment
        own = {"LD_LIBRARY_PATH": str(built), "LD_PRELOAD": str(library), "C4BENCH_ATTACH_RECORDS": str(folder)}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        process = subprocess.Popen([built / program, what], env=os.environ | own | environment, **pipes)
        started.append(process)
        return Driver(process, folder)

    yield start
    for process in started:
        process.communicate()
