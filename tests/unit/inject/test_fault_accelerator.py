"""The simulated accelerator: its faults by the controls of the ranks that compute on it."""

import threading
import time

import msgspec
import pytest

from c4bench.collective.gpu_links import GpuLinks, GpuPair
from c4bench.collective.recorder import Recorder
from c4bench.collective.ring_layout import ConnName
from c4bench.errors import UnhealthyError, UsageError
from c4bench.inject import fault_session, gpus, processes
from c4bench.inject.catalogue import load
from c4bench.inject.witness.gpu_links import GpuLinkPace, GpuLinkStandstill
from c4bench.model.agent import AgentConfig
from c4bench.model.fabric import Inside
from c4bench.model.fault import FaultRequest
from c4bench.model.telemetry import CommRecord, Member
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


@pytest.fixture
def links(ranks, tmp_path):
    """The links of the host's GPUs, as its ranks see them: a byte a ns."""
    assert ranks
    return GpuLinks(tmp_path / "rings" / "gpu-links", Inside(8e9, 0.0))


@pytest.mark.parametrize(
    ("fault", "parameters", "sent_ns", "received_ns"),
    [
        ("nvlink.rate", {"fraction": 0.25}, 4000, 1000),
        ("nvlink.rate", {"fraction": 0.5, "direction": "rx"}, 1000, 2000),
        ("nvlink.rate", {"fraction": 0.5, "direction": "both"}, 2000, 2000),
        ("nvlink.down", {}, None, None),
    ],
)
def test_a_link_of_a_gpu_is_slow_or_down_until_the_fault_ends(links, fault, parameters, sent_ns, received_ns):
    """What GPU 1 sends to another of its host, or receives, takes as long as the fault says, and then what it did."""
    plan = planned(fault, gpu=1, **parameters)
    performed(plan.apply)
    assert links.arrives_ns(GpuPair(1, 0), 1000, 10**6) == (10**6 + sent_ns if sent_ns else None)
    assert links.arrives_ns(GpuPair(0, 1), 1000, 10**7) == (10**7 + received_ns if received_ns else None)
    performed(plan.revert)
    assert links.arrives_ns(GpuPair(1, 0), 1000, 10**8) == 10**8 + 1000


def test_links_need_ranks_with_a_gpu_each(ranks):
    """Where no rank has a GPU of its own, there is no link to break."""
    assert ranks
    with pytest.raises(UsageError, match="no rank with a GPU of its own runs here"):
        planned("nvlink.down", gpu=0)


def test_witnesses_see_a_link_that_is_slow_or_stands_still(tmp_path, monkeypatch):
    """What the ranks of the host record of messages between GPUs shows both, at the GPU of the fault alone."""
    monkeypatch.setattr(processes, "configuration", lambda: tmp_path)
    (tmp_path / "agent.yml").write_text(f"{{name: h5, master: m, trust: t, rings: {tmp_path}/rings}}")
    places = AgentConfig("h5", "m", "t", rings=f"{tmp_path}/rings")
    places.ring("train", 0).parent.mkdir(parents=True)
    recorder = Recorder(places.ring("train", 0), "train", 0)
    members = tuple(Member(rank, "h5", ("h5/0",)) for rank in range(2))
    comm = recorder.communicator(CommRecord("c", "train", members), 0)
    conn = recorder.connection(ConnName(comm, 1, "h5/gpu0", "h5/gpu1", 0), 0, 0)
    request = FaultRequest("nvlink.rate", "h5", gpu=0, witness_s=2.0, parameters={"fraction": 0.5, "direction": "tx"})
    clock_ns = iter(range(0, 10**12, 10**6))
    pace, still, done = [1.0], [False], threading.Event()

    def send():
        while not done.wait(0.002):
            if not still[0]:
                now_ns = next(clock_ns)
                conn.set_state("transfer", 1, 0, now_ns)
                conn.acknowledge(1 << 18, now_ns)
                conn.set_state("idle", 0, 0, now_ns + int(pace[0] * (1 << 18)))
            else:
                conn.set_state("transfer", 1, 0, next(clock_ns))

    thread = threading.Thread(target=send)
    thread.start()
    try:
        witness = GpuLinkPace(request)
        assert witness.before()["ns_per_byte"] == pytest.approx(1.0, rel=0.01)
        assert witness.during(0.0).observed_s is None
        pace[0] = 2.0
        assert witness.during(0.0).observed_s is not None
        assert witness.after().recovered is False
        pace[0] = 1.0
        assert witness.after().recovered
        standstill = GpuLinkStandstill(request)
        assert standstill.before()["messages"] > 0
        still[0] = True
        assert standstill.during(0.0).observed_s is not None
        still[0] = False
        assert standstill.after().recovered
        other = GpuLinkPace(msgspec.structs.replace(request, gpu=3, witness_s=0.05))
        assert other.before() == {"ns_per_byte": 0.0}
    finally:
        done.set()
        thread.join()


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
