"""Programs go on at the other NIC when theirs fails: each message once, or a loud error.

pytest --hosts softroce --c4-topology tests/scenarios/attach/two-nics.yml -m "nightly or not nightly" FILE
"""

import random
import re
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from c4bench.attach import build
from c4bench.attach.environment import AS_INVENTORY, FAILOVER, PRELOAD

pytestmark = [pytest.mark.nightly, pytest.mark.needs(hosts=2)]
EXACT = Path(__file__).with_name("exact.c")
BYTES, MESSAGES, WITHIN_S = 16384, 6000, 20.0
# Into the program's run, which takes about 0.8 s; a fault takes effect a tenth of a second after it is asked for.
EARLIEST_S, LATEST_S = 0.0, 0.5


class Ended(NamedTuple):
    """How the two ends of a program ended: their codes and output, and its longest pause (s)."""

    codes: tuple[int, ...]
    printed: str

    @property
    def pause_s(self) -> float:
        return max(map(float, re.findall(r"longest pause ([\d.]+) s", self.printed)))


@pytest.fixture
def ends(rdma_hosts):
    """Two hosts with two NICs each."""
    several = [host for host in rdma_hosts if len(host.nics) > 1]
    if len(several) < 2:
        pytest.skip("one-nic: hosts have one NIC each; give --c4-topology tests/scenarios/attach/two-nics.yml")
    return several[0], several[-1]


@pytest.fixture
def exact(program, ends, tmp_path):
    """Start the program that checks every byte; returns what waits for its end."""
    subprocess.run(
        ["gcc", "-std=c11", "-D_DEFAULT_SOURCE", "-O2", "-o", tmp_path / "exact", EXACT, "-libverbs"], check=True
    )
    path = program.copy(tmp_path / "exact", ends)
    libraries = {PRELOAD: ":".join(map(str, build.libraries(failover=True))), FAILOVER: AS_INVENTORY}

    def start(mode, messages=MESSAGES, environment=libraries):
        words = [path, mode, "{device}", "{gid}", str(BYTES), str(messages)]
        ran = program([*words, "{server}"], server=words, hosts=ends, environment=environment)

        def end():
            ran.wait(WITHIN_S)
            return Ended(
                tuple(process.code for process in ran.processes), "".join(each.output() for each in ran.processes)
            )

        return end

    return start


@pytest.mark.parametrize("mode", ["send", "write", "read"])
def test_without_a_failure(exact, mode):
    """Nothing is different."""
    ended = exact(mode)()
    assert ended.codes == (0, 0), ended.printed


@pytest.mark.parametrize("mode", ["send", "write", "read"])
@pytest.mark.parametrize("which", ["server", "client"])
def test_a_nic_is_lost(exact, ends, inject, measure, mode, which):
    """Every byte comes once, in order; the program pauses for less than 50 ms."""
    draw = random.Random(f"{mode} {which}")
    end = exact(mode)
    time.sleep(draw.uniform(EARLIEST_S, LATEST_S))
    with inject("nic.down", host=ends[which == "client"].name, nic=0):
        ended = end()
    assert ended.codes == (0, 0), ended.printed
    assert "go on at" in ended.printed
    measure("failover.pause_s", ended.pause_s, unit="s", at_most=0.05, program=mode, notice=which)
