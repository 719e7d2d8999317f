"""Payloads, controls and job descriptions."""

import subprocess
import sys
import time
from itertools import pairwise
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from c4bench.errors import UsageError
from c4bench.model.fabric import Host, Nic
from c4bench.model.telemetry import Member
from c4bench.wire.messages import JobSpec
from c4bench.workload.controls import Controls, Knob
from c4bench.workload.jobs import host_rank, job, place
from c4bench.workload.programs import NAMES, program

KNOBS = get_args(Knob)


# A rank with a second thread that says when it was last able to run.
RANK = """
import sys, threading, time
from pathlib import Path
from c4bench.workload.controls import Controls, Knob
controls = Controls.create(Path(sys.argv[1]))
def tick():
    while True:
        Path(sys.argv[2]).write_text("")
        time.sleep(0.005)
threading.Thread(target=tick, daemon=True).start()
print(flush=True)
while True:
    controls.compute(0.005)
"""


def test_a_knob_turned_by_one_process_is_seen_by_another(tmp_path):
    """The rank and the injector share the knobs' memory, and each knob is independent."""
    rank = Controls.create(tmp_path / "0.controls")
    assert [rank.read(knob) for knob in KNOBS] == [1.0, 0.0, 0.0, 0.0, 0.0]
    for value, knob in enumerate(KNOBS, 2):
        Controls.open(tmp_path / "0.controls").set(knob, value)
    assert [rank.read(knob) for knob in KNOBS] == [2.0, 3.0, 4.0, 5.0, 6.0]


@pytest.fixture
def rank(tmp_path):
    """A process that obeys its controls, and those."""
    command = [sys.executable, "-c", RANK, str(tmp_path / "0.controls"), str(tmp_path / "ticked")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        yield process, Controls.open(tmp_path / "0.controls")
        process.kill()


def stands(ticked):
    """Whether no thread of the rank runs for a while."""
    ticked.unlink(missing_ok=True)
    time.sleep(0.3)
    return not ticked.exists()


def test_a_hang_keeps_every_thread_from_running_until_it_is_called_off(rank, tmp_path):
    """A hang stops the rank's other threads too, and all continue afterwards."""
    _, controls = rank
    assert not stands(tmp_path / "ticked")
    controls.set("hang_until_s", time.monotonic() + 600)
    time.sleep(0.1)
    assert stands(tmp_path / "ticked")
    controls.set("hang_until_s", 0.0)
    assert not stands(tmp_path / "ticked")


def test_a_hang_ends_at_its_time_without_anybody(rank, tmp_path):
    """A hang ends by itself if the injector is gone."""
    _, controls = rank
    until_s = time.monotonic() + 0.8
    controls.set("hang_until_s", until_s)
    time.sleep(0.1)
    assert stands(tmp_path / "ticked")
    time.sleep(max(0.0, until_s + 0.1 - time.monotonic()))
    assert not stands(tmp_path / "ticked")


def test_a_rank_exits_with_the_code_it_is_ordered_to(rank):
    """Nothing in between changes it."""
    process, controls = rank
    controls.set("exit_code", 7)
    assert process.wait(10) == 7


def test_controls_of_nobody_are_refused(tmp_path):
    """A missing file and a foreign one are errors with their path."""
    (tmp_path / "foreign").write_bytes(b"x" * 64)
    for name in ("missing", "foreign"):
        with pytest.raises(UsageError, match=name):
            Controls.open(tmp_path / name)


def hosts(count):
    return [Host(f"h{i}", "", (Nic(f"h{i}", 0, f"h{i}r0", f"h{i}n0", f"10.0.{i}.1", 1e10),)) for i in range(count)]


@given(count=st.integers(2, 16))
def test_neighbours_are_placed_across_the_halves(count):
    """The order keeps every host, and ring neighbours come from different halves as far as halves are equal."""
    made = hosts(count)
    placed = place(made)
    assert sorted(host.name for host in placed) == sorted(host.name for host in made)
    half = (count + 1) // 2
    sides = [made.index(host) < half for host in placed[: count - count % 2]]
    assert all(here != there for here, there in pairwise(sides))


def test_ranks_of_a_host_are_numbered_on_it():
    """However ranks alternate between hosts, those of one host count from 0 there."""
    members = tuple(Member(rank, host, ()) for rank, host in enumerate(("a", "b", "a", "a", "b")))
    spec = JobSpec("job", "ring", members, ())
    assert [host_rank(spec, rank) for rank in range(5)] == [0, 0, 1, 2, 1]


def test_a_job_uses_all_nics_of_its_hosts():
    """Members are ranked in host order, with every NIC listed."""
    spec = job("j", "training", hosts(3), seed=1, compute_s=0.1)
    assert [(member.rank, member.host, member.nics) for member in spec.members] == [
        (0, "h0", ("h0/0",)),
        (1, "h1", ("h1/0",)),
        (2, "h2", ("h2/0",)),
    ]


@pytest.mark.parametrize("name", NAMES)
def test_every_program_that_a_job_may_name_is_there(name):
    """The name is its module's, which is loaded when asked for."""
    assert program(name).__module__ == f"c4bench.workload.{name}"


def test_a_program_that_nobody_knows_is_refused_with_those_there_are():
    """A job that names another gets one line that lists them, and no module of that name is loaded."""
    with pytest.raises(UsageError, match="no program 'context': one of bandwidth, "):
        program("context")
