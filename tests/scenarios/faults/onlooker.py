"""Watches for a fault that never comes: each line has a request, and what is done instead of the fault and undone.

The answer is what the fault's witness saw. Sent as text.
"""

import json
import subprocess
import sys
import time

import msgspec

from c4bench.inject import catalogue
from c4bench.inject.fault_session import witness_of
from c4bench.inject.witness.base import plane_of
from c4bench.model.fault import FaultRequest


def perform(commands):
    """Run them, one after the other."""
    for argv in commands:
        subprocess.run(argv, check=True)


CATALOGUE = catalogue.load()
for line in sys.stdin:
    asked = json.loads(line)
    spec, request = CATALOGUE.resolve(msgspec.convert(asked["request"], FaultRequest))
    witness = witness_of(spec, request)
    before = witness.before()
    perform(asked["instead"])
    try:
        evidence = witness.during(time.time())
    finally:
        perform(asked["undo"])
    answer = {"seen": evidence.observed_s is not None, "plane": plane_of(witness)}
    sys.stdout.write(f"{json.dumps(answer | {'before': before, 'during': evidence.values})}\n")
    sys.stdout.flush()
