"""Programs that time themselves by the processor's counter (rdtsc) time the lab."""

import ctypes
import mmap
import re
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

from c4bench.lab.spec import CONTROL_SOCKET

READING_NS = 16  # what reading the lab's clock takes
COUNTERS = {"rdtsc": b"\x0f\x31", "rdtscp": b"\x0f\x01\xf9"}
WHOLE = b"\x48\xc1\xe2\x20\x48\x09\xd0\xc3"  # shl $32, %rdx; or %rdx, %rax; ret
FAULTS = {"hlt": b"\xf4", "jump to no address": b"\x48\xb8" + b"\x11" * 8 + b"\xff\xe0"}  # movabs $..., %rax; jmp *%rax


def compiled(code):
    """A function of these bytes that returns a number."""
    page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(code)
    call = ctypes.CFUNCTYPE(ctypes.c_uint64)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
    call.page = page
    return call


@pytest.fixture(params=COUNTERS)
def counter(request):
    """Read the processor's counter."""
    return compiled(COUNTERS[request.param] + WHOLE)


@pytest.fixture(autouse=True)
def _in_lab():
    if not Path(CONTROL_SOCKET).exists():
        pytest.skip("unsupported: only in a lab does the processor's counter count nanoseconds of CLOCK_MONOTONIC")


def test_the_counter_is_the_labs_clock(counter):
    """Between two readings of CLOCK_MONOTONIC the counter lies exactly in the middle, and costs what they cost."""
    readings = [(time.monotonic_ns(), counter(), time.monotonic_ns()) for _ in range(1000)]
    assert all(before < counted < after for before, counted, after in readings)
    assert statistics.mode(counted - before for before, counted, _ in readings) == READING_NS
    assert statistics.mode(after - counted for _, counted, after in readings) == READING_NS


def test_the_frequency_turns_counts_into_seconds(counter):
    """Both frequencies of /proc/cpuinfo, by which perftest and UCX convert, are that of the counter over a sleep."""
    said = Path("/proc/cpuinfo").read_text()
    began_ns, began = time.monotonic_ns(), counter()
    time.sleep(0.01)
    counted, took_ns = counter() - began, time.monotonic_ns() - began_ns
    per_s = 1e9 * counted / (took_ns - 2 * READING_NS)
    assert float(re.search(r"^cpu MHz\s*: (.*)$", said, re.MULTILINE)[1]) * 1e6 == pytest.approx(per_s, rel=1e-9)
    assert float(re.search(r"^model name.*@ (.*)GHz$", said, re.MULTILINE)[1]) * 1e9 == pytest.approx(per_s, rel=1e-9)


def test_who_waits_for_the_counter_lets_time_pass(counter):
    """A loop until the counter has moved by 100 us ends, 100 us later."""
    began_ns = time.monotonic_ns()
    until = counter() + 100_000
    while counter() < until:
        pass
    assert 100_000 <= time.monotonic_ns() - began_ns < 110_000


@pytest.mark.parametrize("fault", FAULTS)
def test_other_faults_are_still_faults(fault):
    """A process that executes what it may not is killed as before."""
    script = f"import sys; sys.path[:0] = [{str(Path(__file__).parent)!r}]; import {Path(__file__).stem} as it; "
    ended = subprocess.run([sys.executable, "-c", f"{script}it.compiled(it.FAULTS[{fault!r}])()"], check=False)
    assert ended.returncode == -signal.SIGSEGV
