import os
import signal
import socket
import subprocess
import sys
import time

import msgspec
import pytest
from fakes import rank_request
from hypothesis import given
from hypothesis import strategies as st

from c4bench.errors import UnhealthyError, UsageError
from c4bench.inject import fault_session, processes
from c4bench.inject.actions import Signal
from c4bench.inject.catalogue import load
from c4bench.inject.registry import WITNESSES
from c4bench.inject.witness.accelerator import gaps
from c4bench.inject.witness.base import Counters
from c4bench.inject.witness.echo import plausible
from c4bench.model.agent import AgentConfig
from c4bench.model.telemetry import OpRecord
from c4bench.workload.controls import Controls

CATALOGUE = load()


def op(entered_s, finished_s, comm="a"):
    return OpRecord(comm, 0, 0, "all_reduce", "ring", "float32", 4, entered_s, entered_s, finished_s)


@pytest.mark.parametrize(
    ("lost", "sent", "probability", "expected"),
    [
        (500, 500, 1.0, True),
        (480, 500, 1.0, False),
        (0, 500, 1.0, False),
        (200, 10000, 0.02, True),
        (1000, 10000, 0.02, False),
        (0, 10000, 0.02, False),
    ],
)
def test_losses_must_be_about_as_many_as_asked_for(lost, sent, probability, expected):
    """A black hole lets nothing pass, and a loss far from its probability is some other trouble."""
    assert plausible(lost, sent, probability) is expected


def test_gaps_are_times_without_any_operation():
    """Overlapping operations of two communicators leave one gap, and a running one ends the last."""
    ops = [op(0.0, 1.0), op(0.5, 2.0, "b"), op(3.0, 4.0), op(6.0, 0.0)]
    assert [(gap.began_s, gap.ended_s) for gap in gaps(ops)] == [(2.0, 3.0), (4.0, 6.0)]
    assert [(gap.began_s, gap.ended_s) for gap in gaps(ops, 3.5)] == [(4.0, 6.0)]


def test_an_earlier_fault_does_not_hide_what_is_usual_now():
    """Short gaps are told from moments between operations by the longest since then, not by the longest ever."""
    ops = [op(0.0, 1.0), op(21.0, 22.0), op(23.0, 24.0), op(25.0, 26.0)]
    assert len(gaps(ops)) == 1
    assert len(gaps(ops, 21.0)) == 2


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0.001, 10)), max_size=12))
def test_gaps_never_touch_an_operation(spans):
    """No operation runs within a gap, whatever the order of the records."""
    ops = [op(entered, entered + length) for entered, length in spans]
    for gap in gaps(ops):
        assert gap.length_s > 0
        assert not [o for o in ops if o.entered_s < gap.ended_s and o.finished_s > gap.began_s]


def test_counters_grow_with_traffic_and_are_zero_for_no_interface():
    """One open file tells the traffic of an interface again and again."""
    counters = Counters(None)
    assert counters.read("nosuch") == (0, 0, 0, 0)
    before = counters.read("lo")
    receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    receiver.bind(("127.0.0.1", 0))
    with receiver, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"x" * 1000, receiver.getsockname())
        receiver.recv(2000)
    assert counters.read("lo").tx_bytes >= before.tx_bytes + 1000


@pytest.fixture
def rank(tmp_path, monkeypatch):
    """A process that is rank 2 of job train, as far as its two files tell."""
    config = tmp_path / "agent.yml"
    config.write_text(f"{{name: h5, master: m, trust: t, rings: {tmp_path}}}")
    monkeypatch.setattr(processes, "configuration", lambda: tmp_path)
    places = AgentConfig("h5", "m", "t", rings=str(tmp_path))
    places.ring("train", 2).parent.mkdir()
    script = (
        "import sys,time; from pathlib import Path; from c4bench.collective.recorder import Recorder;"
        "Recorder(Path(sys.argv[1]), 'train', 2); print(flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", script, str(places.ring("train", 2))], stdout=subprocess.PIPE)
    process.stdout.readline()
    Controls.create(places.controls("train", 2))
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


@pytest.mark.parametrize(("fault", "letters", "recovered"), [("process.stop", "T", True), ("process.kill", "ZX", None)])
def test_a_signalled_rank_is_seen_in_its_new_state(rank, fault, letters, recovered):
    """The plan signals the process that writes the telemetry, and the witness sees it in the kernel's books."""
    spec, request = CATALOGUE.resolve(rank_request(fault))
    witness = WITNESSES[spec.witness](request)
    assert witness.before()["running"] == 1.0
    plan, _ = fault_session.plan(spec, request)
    onset_s = time.time()
    for action in plan.apply:
        action.perform()
    evidence = witness.during(onset_s)
    assert evidence.observed_s >= onset_s
    assert processes.state(rank.pid) in letters
    for action in plan.revert:
        action.perform()
    assert witness.after().recovered is recovered


@pytest.mark.usefixtures("rank")
def test_a_state_that_does_not_come_is_not_seen():
    """Without the fault the witness has no evidence."""
    spec, request = CATALOGUE.resolve(rank_request("process.stop"))
    witness = WITNESSES[spec.witness](request)
    witness.before()
    assert witness.during(time.time()).observed_s is None


def test_a_number_that_another_process_has_now_is_left_alone(rank):
    """A signal is for the process that was found, not for another one that has its PID now."""
    with pytest.raises(UnhealthyError, match="has ended"):
        Signal(rank.pid, processes.started_ticks(rank.pid) + 1, os.geteuid(), signal.SIGKILL).perform()
    assert rank.poll() is None


def test_a_rank_that_is_not_here_is_refused(rank):
    """A wrong rank, and one whose process has ended, are told apart."""
    with pytest.raises(UsageError, match="rank 3 of job train does not run on h5"):
        processes.find(msgspec.structs.replace(rank_request("process.stop"), rank=3))
    os.kill(rank.pid, signal.SIGKILL)
    rank.wait()
    with pytest.raises(UsageError, match="has ended"):
        processes.find(rank_request("process.stop"))


@pytest.mark.usefixtures("rank")
def test_a_slowed_rank_is_slowed_on_top_of_what_it_was():
    """The factor multiplies the one found, and the one found comes back."""
    spec, request = CATALOGUE.resolve(rank_request("process.slow", factor=3))
    controls = Controls.open(processes.find(request).controls)
    controls.set("compute_factor", 1.5)
    plan, _ = fault_session.plan(spec, request)
    plan.apply[0].perform()
    assert controls.read("compute_factor") == 4.5
    plan.revert[0].perform()
    assert controls.read("compute_factor") == 1.5
