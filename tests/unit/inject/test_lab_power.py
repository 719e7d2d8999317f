"""The power button of a lab's host: what a crash or a restart that it asks for itself leads to."""

import selectors
import time

import pytest

from c4bench.inject.actions import Write
from c4bench.lab.guest import hosts
from c4bench.lab.guest.hosts import Power


class Machine:
    """Counts what is done to it."""

    def __init__(self):
        self.done = []

    def boot(self):
        self.done.append("boot")

    def crash(self):
        self.done.append("crash")


@pytest.fixture
def keeper(tmp_path, monkeypatch):
    """A host's power switch, and a function that runs what its keeper has to do."""
    monkeypatch.setattr(hosts, "_PLACE", tmp_path / "power")
    monkeypatch.setattr(hosts, "_RESTART_S", 0.05)
    hosts.prepare_power("h0")
    machine = Machine()
    with selectors.DefaultSelector() as selector:
        button = Power({"h0": machine}, selector)

        def turn():
            for key, _ in selector.select(button.due_in_s() or 0):
                key.data()
            button.apply_due()

        yield machine, turn, button


@pytest.mark.parametrize(
    ("letter", "panic", "done"),
    [("c", "0", ["crash"]), ("c", "0.05", ["crash", "boot"]), ("b", "0", ["crash", "boot"]), ("s", "0", [])],
)
def test_a_host_crashes_and_restarts_as_requested(keeper, letter, panic, done):
    """A crash without kernel.panic is for good; with it, and after a restart, the host comes back by itself."""
    machine, turn, button = keeper
    hosts.panic("h0").write_text(panic)
    Write(str(hosts.trigger("h0")), letter).perform()
    turn()
    assert machine.done == done[:1]
    assert (button.due_in_s() is not None) == (len(done) == 2)
    time.sleep(0.06)
    turn()
    assert machine.done == done


@pytest.mark.usefixtures("keeper")
def test_a_reset_forgets_what_the_crashed_host_had_set():
    """kernel.panic is what a fresh kernel has."""
    hosts.panic("h0").write_text("60")
    hosts.prepare_power("h0")
    assert hosts.panic("h0").read_text() == "0\n"
