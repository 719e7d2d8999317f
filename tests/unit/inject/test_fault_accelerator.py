"""The simulated accelerator: its faults by the controls of the ranks that compute on it."""

import time

import pytest

from c4bench.collective.recorder import Recorder
from c4bench.errors import UnhealthyError, UsageError
from c4bench.inject import fault_session, gpus, processes
from c4bench.inject.catalogue import load
from c4bench.model.agent import AgentConfig
from c4bench.model.fault import FaultRequest
from c4bench.workload.controls import Controls, DeviceError

CATALOGUE = load()


@pytest.fixture
def ranks(tmp_path, monkeypatch):
    """A host without a GPU, where ranks 2 and 6 of one job and rank 0 of another are this process."""
    monkeypatch.setattr(gpus.shutil, "which", lambda _: None)
    config = tmp_path / "agent.yml"
    config.write_text(f"{{name: h5, master: m, trust: t, rings: {tmp_path}/rings}}")
    monkeypatch.setattr(processes, "configuration", lambda: tmp_path)
    places = AgentConfig("h5", "m", "t", rings=f"{tmp_path}/rings")
    made = {}
    for job, rank in (("train", 2), ("train", 6), ("other", 0)):
        places.ring(job, rank).parent.mkdir(parents=True, exist_ok=True)
        Recorder(places.ring(job, rank), job, rank)
        made[job, rank] = Controls.create(places.controls(job, rank))
    return made


def planned(fault, gpu=0, **parameters):
    spec, request = CATALOGUE.resolve(FaultRequest(fault, "h5", gpu=gpu, parameters=parameters))
    plan, _ = fault_session.plan(spec, request)
    return plan


def performed(actions):
    for action in actions:
        action.perform()


@pytest.mark.parametrize(
    ("fault", "parameters", "factor"),
    [("gpu.clock", {"clock_mhz": 495}, 4.0), ("gpu.power", {"limit_w": 87.5}, 2.0)],
)
def test_a_slow_accelerator_slows_all_its_ranks_and_no_other(ranks, fault, parameters, factor):
    """The first rank of each job has accelerator 0; their pace is as clock or power say, then what it was."""
    ranks["train", 2].set("compute_factor", 1.5)
    plan = planned(fault, **parameters)
    performed(plan.apply)
    found = {name: controls.read("compute_factor") for name, controls in ranks.items()}
    assert found == pytest.approx({("train", 2): 1.5 * factor, ("train", 6): 1.0, ("other", 0): factor})
    performed(plan.revert)
    assert [controls.read("compute_factor") for controls in ranks.values()] == [1.5, 1.0, 1.0]


def test_a_hanging_kernel_returns_when_the_fault_ends(ranks):
    """Computing does not come back while it hangs, and by itself when its time is over."""
    plan = planned("gpu.hang", gpu=1)
    performed(plan.apply)
    assert ranks["train", 6].read("stuck_until_s") > time.monotonic()
    performed(plan.revert)
    assert ranks["train", 6].read("stuck_until_s") == 0.0
    ranks["train", 6].set("stuck_until_s", time.monotonic() + 0.1)
    began_s = time.monotonic()
    ranks["train", 6].compute(0.0)
    assert time.monotonic() - began_s >= 0.1


def test_an_error_ends_the_computing_with_its_number(ranks):
    """The rank's error names the failure and the fix; the end of the lease withdraws the order."""
    plan = planned("gpu.ecc", xid=79)
    performed(plan.apply)
    with pytest.raises(DeviceError, match="the accelerator reports error 79; take it out of use"):
        ranks["train", 2].compute(0.0)
    performed(plan.revert)
    ranks["train", 2].compute(0.0)


@pytest.mark.usefixtures("ranks")
def test_what_a_simulated_one_cannot_do_is_refused():
    """No accelerator without a rank, no clock above the highest; the health monitor's books need a real one."""
    with pytest.raises(UsageError, match="h5 has no GPU 2: nvidia-smi is not installed, and no rank computes"):
        planned("gpu.clock", gpu=2)
    with pytest.raises(UnhealthyError, match="1980 MHz at most"):
        planned("gpu.clock", clock_mhz=2500)
    with pytest.raises(UnhealthyError, match="700 W at most"):
        planned("gpu.power", limit_w=900)
    with pytest.raises(UnhealthyError, match=r"gpu\.xid has no driver for simulated"):
        planned("gpu.xid")
