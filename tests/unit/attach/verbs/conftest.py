"""Programs that post and poll on a device that carries nothing, under the preloaded library."""

import os
import subprocess
from pathlib import Path

import pytest

from c4bench.attach import build, records
from c4bench.collective.ring_reader import read_telemetry_file
from tools import fake_verbs

HERE = Path(__file__).parent


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
    """The folder of the compiled programs and of their libibverbs."""
    if why := fake_verbs.obstacle():
        pytest.skip(f"no-compiler: {why}")
    build.build()
    place = tmp_path_factory.mktemp("driver")
    fake_verbs.compile_library(place)
    fake_verbs.compile_program(HERE / "driver.c", place)
    fake_verbs.compile_program(HERE / "resolver.c", place, linked=False)
    return place


@pytest.fixture(scope="session")
def in_place(built):
    """The folder of the library that stands in the place of the programs' libibverbs."""
    build.build_in_place(built / "libibverbs.so.1", built / "in-place")
    return built / "in-place"


@pytest.fixture
def folder(tmp_path):
    """The folder of records."""
    (tmp_path / "records").mkdir()
    return tmp_path / "records"


@pytest.fixture
def driver(built, folder):
    """Start a driver; it waits, once it has done its part, until the test ends."""
    started = []

    def start(what, *, program="driver", wrap=(), **environment):
        library = build.library("verbs")
        environment = {"C4BENCH_ATTACH_SOCKET": str(folder.parent / "agent")} | environment
        own = {"LD_LIBRARY_PATH": str(built), "LD_PRELOAD": str(library), "C4BENCH_ATTACH_RECORDS": str(folder)}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        process = subprocess.Popen([*wrap, built / program, what], env=os.environ | own | environment, **pipes)
        started.append(process)
        return Driver(process, folder)

    yield start
    for process in started:
        process.communicate()
