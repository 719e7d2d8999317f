"""Messages, files, requests and outputs of others: whatever is in them, they are consumed, or refused in one line."""

import random
import sys

import pytest
from fuzz_targets import bus, evidence, files, injector, outputs, page, wire
from fuzzing import PEAK_AT_MOST_BYTES, chosen, fuzz

from c4bench.model.measurement import Clock, Outcome
from c4bench.record import Ledger

ROOMS = (wire, bus, injector, evidence, outputs, files, page)
TARGETS = {target.name: target for room in ROOMS for target in room.TARGETS}
# In each run the same inputs, at night others; so many of each target, and 200,000 in all.
SEED, INPUTS = "1", 50
NIGHTLY_INPUTS = -(-200_000 // len(TARGETS))


@pytest.mark.parametrize("night", [False, pytest.param(True, marks=pytest.mark.nightly, id="night")])
@pytest.mark.parametrize("name", TARGETS)
def test_whatever_comes_it_is_consumed_or_refused_in_one_line(name, night, tmp_path, drills, request):
    """No input gives a traceback, takes more than a tenth of a second of the processor, or keeps memory."""
    inputs = chosen(str(random.SystemRandom().getrandbits(32)), NIGHTLY_INPUTS) if night else chosen(SEED, INPUTS)
    sys.stdout.write(f"seed {inputs.seed}, inputs {inputs.first} to {inputs.first + inputs.count - 1}\n")
    found = fuzz(TARGETS[name], tmp_path, inputs)
    ledger, labels = Ledger(drills, request.node.nodeid), {"target": name}
    ledger.measure("fuzz.inputs", inputs.count, "1", clock=Clock.NONE, **labels)
    ledger.measure("fuzz.peak_memory", found.peak_bytes, "B", at_most=PEAK_AT_MOST_BYTES, clock=Clock.NONE, **labels)
    taken = ledger.measure("fuzz.escapes", len(found.escapes), "1", equals=0, clock=Clock.NONE, **labels)
    assert taken.outcome is Outcome.PASS, "\n".join((f"of seed {inputs.seed}:", *found.escapes[:5]))
