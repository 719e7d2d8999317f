"""Witnesses that read one value: which change proves the fault, and that it is as before afterwards."""

from types import SimpleNamespace

import pytest
from fakes import nic_request, target

from c4bench.inject.witness import base, figure
from c4bench.model.fabric import Nic
from c4bench.model.fault import FaultRequest

MB = 1 << 20


class Clock:
    """A host's clock that only sleeping moves; `plan` changes readings at given times."""

    def __init__(self):
        self.now_s, self.ahead_s, self.at = 1000.0, 50_000.0, []

    def sleep(self, seconds):
        self.now_s += seconds
        while self.at and self.now_s >= self.at[0][0]:
            self.at.pop(0)[1]()

    def monotonic(self):
        return self.now_s

    def time(self):
        return self.now_s + self.ahead_s


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(figure, "time", clock)
    monkeypatch.setattr(base, "time", clock)
    return clock


def host_request(fault, witness_s=0.3, **parameters):
    return FaultRequest(fault, "h5", parameters=parameters, witness_s=witness_s)


def test_a_figure_is_observed_at_the_first_changed_reading(clock):
    """The change that comes a while after the onset has its own time; the reading afterwards must be as before."""
    value = [100.0]
    witness = figure.Figure("x", 1.0, lambda: value[0], lambda before, now: now < before / 2)
    assert witness.before() == {"x": 100.0}
    clock.at = [(1000.5, lambda: value.__setitem__(0, 40.0))]
    evidence = witness.during(clock.time())
    assert evidence.values == {"x": 40.0}
    assert evidence.observed_s == pytest.approx(51_000.5, abs=0.002)
    clock.at = [(clock.now_s + 0.3, lambda: value.__setitem__(0, 104.0))]
    assert witness.after() == ({"x": 104.0}, True)


@pytest.mark.parametrize(
    ("during", "after", "seen", "recovered"),
    [(60.0, 100.0, False, True), (40.0, 40.0, True, False), (40.0, 60.0, True, True), (40.0, 94.0, True, True)],
)
def test_what_does_not_change_enough_is_not_seen(clock, during, after, seen, recovered):
    """Within the window only; a value that is no longer changed is recovered, if not quite as before."""
    value = [100.0]
    witness = figure.Figure("x", 0.2, lambda: value[0], lambda before, now: now < before / 2)
    witness.before()
    value[0] = during
    assert (witness.during(clock.time()).observed_s is not None) == seen
    value[0] = after
    assert witness.after() == ({"x": after}, recovered)


def test_only_gids_of_the_nics_own_address_count(clock, monkeypatch, tmp_path):
    """The table's entries that hold its IPv4 address; the fault is seen once none is left."""
    monkeypatch.setattr(figure, "_INFINIBAND", tmp_path)
    monkeypatch.setattr(figure.interfaces, "examine", lambda _: target())
    gids = tmp_path / "h5r0/ports/1/gids"
    gids.mkdir(parents=True)
    own, zero = "0000:0000:0000:0000:0000:ffff:0a01:0101", "0000:0000:0000:0000:0000:0000:0000:0000"
    for index in range(16):
        entry = {0: "fe80:0000:0000:0000:0000:0000:0000:0001", 2: own, 15: own}.get(index, zero)
        (gids / str(index)).write_text(f"{entry}\n")
    witness = figure.gid_table(nic_request("nic.gid"))
    assert witness.before() == {"gids": 2.0}
    (gids / "2").write_text(f"{zero}\n")
    assert witness.during(clock.time()).observed_s is None
    (gids / "15").write_text(f"{zero}\n")
    assert witness.during(clock.time()).observed_s is not None
    assert witness.after().recovered is False
    for index in ("2", "15"):
        (gids / index).write_text(f"{own}\n")
    assert witness.after() == ({"gids": 2.0}, True)


@pytest.mark.parametrize(("left", "seen"), [(49 * MB, True), (51 * MB, False)])
def test_half_of_the_memory_asked_for_must_be_gone(clock, monkeypatch, left, seen):
    """Others free and allocate meanwhile, so half of what the fault allocates proves it."""
    available = [100 * MB]
    monkeypatch.setattr(figure.targets, "memory_available_bytes", lambda: available[0])
    witness = figure.memory_available(host_request("host.memory", bytes=100 * MB))
    assert witness.before() == {"available_bytes": 100.0 * MB}
    available[0] = left
    assert (witness.during(clock.time()).observed_s is not None) == seen


@pytest.mark.parametrize(
    ("before", "during", "left", "seen"),
    [
        (100 * MB, 4 * MB, 2 * MB, True),  # twice what was to be left
        (100 * MB, 5 * MB, 2 * MB, True),  # a tenth of what there was
        (100 * MB, 11 * MB, 2 * MB, False),
        (100 * MB, MB, 0, True),
        (5 * MB, 1.5 * MB, 0, False),
        (3 * MB, 3 * MB, 2 * MB, False),  # it was as full before
    ],
)
def test_a_full_disk_is_seen_unless_it_was_full(clock, monkeypatch, before, during, left, seen):
    """Full is about as little as was asked for, or a tenth of before; the log file system is looked at."""
    available, asked = [before], []
    monkeypatch.setattr(figure.targets, "disk_available_bytes", lambda path: asked.append(str(path)) or available[0])
    witness = figure.disk_available(host_request("host.disk_full", left_bytes=left))
    witness.before()
    available[0] = during
    assert (witness.during(clock.time()).observed_s is not None) == seen
    assert set(asked) == {"/var/log"}


@pytest.mark.parametrize(("step_s", "seen"), [(-3.0, True), (-2.9, True), (-2.8, False), (3.0, False), (0.0, False)])
def test_a_step_of_the_clock_is_that_which_was_asked_for(clock, step_s, seen):
    """The time of day moves against the monotonic clock by the offset, within 5 % of it and in its direction."""
    witness = figure.clock_offset(host_request("host.clock_step", offset_s=-3.0))
    assert witness.before() == {"offset_s": 50_000.0}
    clock.ahead_s += step_s
    assert (witness.during(clock.time()).observed_s is not None) == seen


def test_speeds_are_read_where_the_kernel_reports_them(clock, monkeypatch, tmp_path):
    """A lower link or PCIe speed than before is the fault; the same one is not."""
    monkeypatch.setattr(figure, "_INFINIBAND", tmp_path / "ib")
    monkeypatch.setattr(figure, "Path", lambda path: tmp_path / str(path).lstrip("/"))
    nic = Nic("h5", 0, "h5r0", "h5n0", "10.1.1.1", 1e10)
    request = FaultRequest("nic.speed", "h5", nic, witness_s=0.1)
    files = {
        "speed_mbps": (figure.link_speed, tmp_path / "sys/class/net/h5n0/speed", "100000\n", "50000\n", 50_000.0),
        "gigatransfers": (
            figure.pcie_speed,
            tmp_path / "ib/h5r0/device/current_link_speed",
            "32.0 GT/s PCIe\n",
            "8.0 GT/s PCIe\n",
            8.0,
        ),
    }
    for name, (make, path, fast, slow, value) in files.items():
        path.parent.mkdir(parents=True)
        path.write_text(fast)
        witness = make(request)
        witness.before()
        assert witness.during(clock.time()).observed_s is None
        path.write_text(slow)
        evidence = witness.during(clock.time())
        assert evidence.values == {name: value}
        assert evidence.observed_s is not None
        path.write_text(fast)
        assert witness.after().recovered is True


@pytest.mark.parametrize(
    ("before_bps", "during_bps", "seen"),
    [(8e9, 2e9, True), (8e9, 2.7e9, True), (8e9, 2.8e9, False), (8e9, 0.0, False), (2e9, 2e9, False)],
)
def test_a_port_is_slow_if_it_sends_below_the_limit(clock, monkeypatch, tmp_path, before_bps, during_bps, seen):
    """The counter counts words of four bytes; a port that sends nothing, or was as slow before, proves nothing."""
    monkeypatch.setattr(figure, "_INFINIBAND", tmp_path)
    counter = tmp_path / "h5r0/ports/1/counters/port_xmit_data"
    counter.parent.mkdir(parents=True)
    sent = SimpleNamespace(words=7.0, bps=before_bps)

    def sleep(seconds):
        clock.now_s += seconds
        sent.words += sent.bps * seconds / 32
        counter.write_text(f"{round(sent.words)}\n")

    monkeypatch.setattr(clock, "sleep", sleep)
    counter.write_text("7\n")
    nic = Nic("h5", 0, "h5r0", "h5n0", "10.1.1.1", 1e10)
    witness = figure.port_rate(FaultRequest("nic.speed", "h5", nic, parameters={"fraction": 0.25}, witness_s=0.5))
    assert witness.before() == {"rate_bps": pytest.approx(before_bps, rel=1e-6)}
    sent.bps = during_bps
    assert (witness.during(clock.time()).observed_s is not None) == seen


@pytest.mark.parametrize(
    ("make", "name", "asked", "before", "slow"),
    [
        (figure.gpu_clock, "clock_mhz", {"clock_mhz": 600.0}, 1400.0, 600.0),
        (figure.gpu_power, "limit_w", {"limit_w": 200.0}, 400.0, 200.0),
    ],
)
def test_a_gpu_is_limited_once_it_reports_the_limit(clock, monkeypatch, make, name, asked, before, slow):
    """The clock, or the limit in force, is at or below what was asked for."""
    gpu = SimpleNamespace(clock_mhz=before, enforced_w=before, limit_w=slow)
    monkeypatch.setattr(figure.gpus, "examine", lambda _: gpu)
    witness = make(host_request("gpu.clock", witness_s=0.01, **asked))
    assert witness.before() == {name: before}
    assert witness.during(clock.time()).observed_s is None
    gpu.clock_mhz = gpu.enforced_w = slow
    assert witness.during(clock.time()).observed_s is not None
    assert witness.after().recovered is False


def test_the_newest_xid_of_the_gpu_is_asked_for(clock, monkeypatch):
    """DCGM's field 230 of this GPU; only the error that was injected counts."""
    answers, asked = ["GPU 3   N/A\n"], []

    def run(argv, **_):
        asked.append(argv)
        return SimpleNamespace(stdout=f"#Entity  XIDER\nID\n{answers[0]}")

    monkeypatch.setattr(figure.subprocess, "run", run)
    request = FaultRequest("gpu.xid", "h5", gpu=3, parameters={"xid": 79}, witness_s=0.01)
    witness = figure.gpu_xid(request)
    assert witness.before() == {"xid": 0.0}
    answers[0] = "GPU 3   43\n"
    assert witness.during(clock.time()).observed_s is None
    answers[0] = "GPU 3   43\nGPU 3   79\n"
    assert witness.during(clock.time()) == ({"xid": 79.0}, clock.time())
    assert set(asked) == {("dcgmi", "dmon", "-i", "3", "-e", "230", "-c", "1")}
