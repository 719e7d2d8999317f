"""What C4D names in a trial does not depend on the trials before it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from c4bench.model.measurement import Clock, Outcome
from c4bench.record import Ledger

REPOSITORY = Path(__file__).parents[2]
TRIAL = "tests/scenarios/grading/test_campaign.py::test_trial"
TRIALS = 21
# One in twenty may come out otherwise: beside other traffic the same fault meets other paths.
SAME = 0.95


@pytest.mark.nightly
@pytest.mark.timeout(3 * 3600)
def test_a_trial_names_the_same_alone_and_behind_others(tmp_path, drills, request):
    """Trials of one lab, each behind the ones before, name the components that each names in a lab of its own."""
    numbers = range(TRIALS)
    together = named(tmp_path / "together", numbers)
    # The first trial is alone in the lab of all.
    alone = {number: named(tmp_path / f"alone-{number}", [number])[number] for number in numbers[1:]}
    differ = {number: (alone[number], together[number]) for number in alone if alone[number] != together[number]}
    same = 1 - len(differ) / len(alone)
    ledger = Ledger(drills, request.node.nodeid)
    taken = ledger.measure("history.same_fraction", same, "", at_least=SAME, clock=Clock.NONE, trials=len(alone))
    assert taken.outcome is Outcome.PASS, differ


def named(run_directory, numbers):
    """What each trial names in one lab, syndrome and component of its first finding, by its number."""
    words = [f"{TRIAL}[{number}]" for number in numbers]
    command = [sys.executable, "-m", "pytest", "--hosts=softroce", *words, f"--c4-run-dir={run_directory}"]
    done = subprocess.run(
        [*command, "-m", "nightly"],
        cwd=REPOSITORY,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=False,
    )
    # A trial whose component is missed has an answer too.
    assert done.returncode in {0, 1, 4}, (done.stdout + done.stderr)[-3000:]
    lines = map(json.loads, (run_directory / "campaign.jsonl").read_text().splitlines())
    found = {number: answer(line) for number, line in zip(numbers, lines, strict=True)}
    assert found.keys() == set(numbers)
    return found


def answer(line):
    """The first finding of a trial in words, "" for none, or why the trial could not be tried."""
    if "refused" in line:
        return line["refused"]
    return line["said"][0].partition(" or ")[0] if line["said"] else ""
