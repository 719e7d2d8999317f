"""A fault is in force while its lease is held, and undone when that ends, however that comes about."""

import io
import os
import subprocess
import sys
import time

import msgspec
import pytest
from held_faults import CATALOGUE, REQUEST, factor, run_hold

from c4bench import logs
from c4bench.errors import UnhealthyError, UsageError
from c4bench.inject import fault_session
from c4bench.inject.actions import Plan, Run, SetKnob
from c4bench.inject.journal import Entry, boot
from c4bench.inject.protocol import Applied, Healed
from c4bench.inject.registry import DRIVERS
from c4bench.model.fault import TargetKind
from c4bench.workload.controls import Controls


@pytest.mark.parametrize(
    ("how", "reason"),
    [({"say_revert": True}, "asked"), ({}, "closed"), ({"close": False}, "lease")],
)
def test_a_fault_ends_on_request_on_disconnect_and_when_its_lease_does(place, tmp_path, how, reason):
    """The saved state comes back, the journal forgets, and the reason is told."""
    Controls.open(tmp_path / "controls").set("compute_factor", 1.5)
    sent = []
    began_s = time.monotonic()
    run_hold(place, sent, **how)
    applied, healed = sent
    assert isinstance(applied, Applied)
    assert isinstance(healed, Healed)
    assert applied.witness.seen
    assert applied.onset_s <= applied.observed_s
    assert healed.reason == reason
    assert (time.monotonic() - began_s >= REQUEST.lease_s) == (reason == "lease")
    assert factor(tmp_path) == 1.5
    assert place.entries() == []


def test_each_change_of_a_fault_is_logged_in_a_line_and_never_on_stdout(place, tmp_path, monkeypatch, capsys):
    """The lines name who asked, the lease and who reverted; a revert by anybody but the injector is a warning."""
    monkeypatch.setenv("SUDO_USER", "alice")
    left_over = fault_session.lease_of(REQUEST)
    plan = Plan(("pace",), (), (SetKnob(str(tmp_path / "controls"), "compute_factor", 1.0),))
    with place.lock():
        place.write(Entry(left_over, TargetKind.PROCESS, plan, {}, time.monotonic() - 1, boot()))
    sent, written = [], io.StringIO()
    logs.configure("info", "json", written)
    run_hold(place, sent)
    assert capsys.readouterr().out == ""
    lines = [msgspec.json.decode(line) for line in written.getvalue().splitlines()]
    logged = [(line["level"], line["message"].replace(left_over.id, "OLD").replace(sent[0].id, "ID")) for line in lines]
    where = f"on {REQUEST.where}"
    assert logged == [
        ("WARNING", f"OLD {where}: reverted by sweep (asked by alice, lease 0.6 s)"),
        ("INFO", f"ID {where}: intent (asked by alice, lease 0.6 s)"),
        ("INFO", f"ID {where}: applied (asked by alice, lease 0.6 s)"),
        ("INFO", f"ID {where}: reverted by injector (asked by alice, lease 0.6 s)"),
    ]
    assert [(line["lease"], line["user"]) for line in lines[1:]] == [(sent[0].id, "alice")] * 3


def test_the_fault_is_in_force_while_it_is_held(place, tmp_path):
    """What is said to be applied is applied, and on disk, at that moment."""
    seen = []

    def say(reply):
        seen.append((type(reply), factor(tmp_path), [entry.lease.id for entry in place.entries()] == [reply.id]))

    reader, writer = os.pipe()
    os.close(writer)
    fault_session.hold(REQUEST, CATALOGUE, place, reader, say)
    os.close(reader)
    assert seen == [(Applied, 3.0, True), (Healed, 1.0, False)]


def test_two_faults_cannot_hold_the_same_thing(place, tmp_path):
    """The second is refused by the name of the first, and neither disturbs the other."""
    first = fault_session.FaultSession(place, fault_session.lease_of(REQUEST))
    first.begin(CATALOGUE.find("process.slow"))
    with pytest.raises(UsageError, match=rf"pace of process \d+, which {first.lease.id} has claimed"):
        run_hold(place, [])
    assert factor(tmp_path) == 3.0
    first.end()
    assert factor(tmp_path) == 1.0


def test_a_failing_apply_is_undone(place, tmp_path, monkeypatch):
    """When the second of two actions fails the first is reverted, and the error is the action's own."""
    controls = str(tmp_path / "controls")
    plan = Plan(
        ("x",), (SetKnob(controls, "compute_factor", 9.0), Run(("false",))), (SetKnob(controls, "compute_factor", 1.0),)
    )
    monkeypatch.setattr(fault_session, "DRIVERS", {**DRIVERS, "process.slow": lambda *_: plan})
    with pytest.raises(UnhealthyError, match="`false` was refused"):
        run_hold(place, [])
    assert factor(tmp_path) == 1.0
    assert place.entries() == []


def test_what_could_not_be_read_again_is_not_written(place, tmp_path, monkeypatch):
    """An entry with a number that JSON lacks is refused before anything is changed: nobody could revert it."""
    plan = Plan(("x",), (SetKnob(str(tmp_path / "controls"), "compute_factor", float("nan")),), ())
    monkeypatch.setattr(fault_session, "DRIVERS", {**DRIVERS, "process.slow": lambda *_: plan})
    with pytest.raises(UsageError, match="Expected `float`"):
        run_hold(place, [])
    assert factor(tmp_path) == 1.0
    assert list(tmp_path.glob("state/faults/*")) == []


def test_every_action_of_a_revert_is_tried(place, tmp_path):
    """One that has nothing left to undo is told and does not keep the others from theirs."""
    controls = str(tmp_path / "controls")
    plan = Plan((), (), (Run(("false",)), SetKnob(controls, "compute_factor", 1.25)))
    with place.lock():
        place.write(
            Entry(
                (lease := fault_session.lease_of(REQUEST)),
                TargetKind.PROCESS,
                plan,
                {},
                time.monotonic(),
                boot(),
            )
        )
    reverted = place.revert(lease.id, "heal")
    assert reverted.problems == ("`false` was refused: exit code 1",)
    assert factor(tmp_path) == 1.25


def test_a_restart_of_the_host_has_undone_everything_itself(place, tmp_path):
    """An entry of an earlier boot is forgotten without touching the host."""
    Controls.open(tmp_path / "controls").set("compute_factor", 7.0)
    plan = Plan((), (), (SetKnob(str(tmp_path / "controls"), "compute_factor", 1.0),))
    with place.lock():
        place.write(
            Entry((lease := fault_session.lease_of(REQUEST)), TargetKind.PROCESS, plan, {}, 0.0, "another boot")
        )
    assert place.revert(lease.id, "heal").problems == ()
    assert factor(tmp_path) == 7.0
    assert place.entries() == []


@pytest.mark.parametrize(
    ("arguments", "code", "sent"),
    [
        (["hold"], 2, "is no command"),
        (["--log-level=loud", "status"], 2, "invalid choice: 'loud'"),
        (["--log-level=debug", "--log-format=json", "plan", "{"], 2, "the request is not one"),
        (["hold", "{"], 2, "the request is not one"),
        (["plan", '{"fault":"nic.rat","host":"h5"}'], 2, "did you mean nic.rate"),
        (["hold", '{"fault":"process.kill","host":"h5","job":"none","rank":0}'], 2, "does not run on h5"),
    ],
)
def test_the_command_refuses_in_one_json_line(arguments, code, sent):
    """Whatever is wrong comes back as an answer, with the house's exit code."""
    if arguments[0] == "hold" and len(arguments[-1]) > 10 and os.geteuid() != 0:
        pytest.skip("needs root")
    done = subprocess.run([sys.executable, "-m", "c4bench.inject", *arguments], capture_output=True, check=False)
    answer = msgspec.json.decode(done.stdout)
    assert (done.returncode, answer["exit_code"]) == (code, code)
    assert sent in answer["error"]
