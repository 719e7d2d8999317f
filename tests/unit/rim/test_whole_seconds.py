"""When tests begin on a lab's clock."""

from types import SimpleNamespace

import pytest

from c4bench.pytest_plugin import verdicts


@pytest.fixture
def slept(monkeypatch):
    """What was slept, on a clock that stands at 7.3 s."""
    found = []
    clock = SimpleNamespace(monotonic_ns=lambda: 7_300_000_000, sleep=found.append)
    monkeypatch.setattr(verdicts, "time", clock)
    return found


def hooks(monkeypatch, tmp_path, time, *, in_lab):
    monkeypatch.setattr(verdicts, "IN_LAB", in_lab)
    option = SimpleNamespace(c4_run_dir=tmp_path, c4_time=time)
    return verdicts.Verdicts(SimpleNamespace(option=option))


def set_up(hooks, scope):
    """A fixture's set-up, as pytest has it wrapped."""
    around = hooks.pytest_fixture_setup(SimpleNamespace(scope=scope))
    next(around)
    with pytest.raises(StopIteration) as ended:
        around.send("made")
    return ended.value.value


def test_a_test_and_what_it_sets_up_begin_on_a_whole_second(monkeypatch, tmp_path, slept):
    """Before each test, and after what it sets up for others too; its own fixtures follow each other at once."""
    virtual = hooks(monkeypatch, tmp_path, "virtual", in_lab=True)
    virtual.pytest_runtest_setup()
    assert slept == [0.7]
    assert set_up(virtual, "session") == "made"
    assert slept == [0.7, 0.7]
    assert set_up(virtual, "function") == "made"
    assert slept == [0.7, 0.7]


@pytest.mark.parametrize(("time", "in_lab"), [("virtual", False), (None, False), ("real", True)])
def test_nobody_waits_in_real_time(monkeypatch, tmp_path, slept, time, in_lab):
    """Hosts' time and a lab's real time are somebody's: no test waits there for its turn."""
    real = hooks(monkeypatch, tmp_path, time, in_lab=in_lab)
    real.pytest_runtest_setup()
    set_up(real, "session")
    assert slept == []
