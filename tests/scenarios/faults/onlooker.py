"""Watches for a fault that never comes: each line is a request, answered by what its witness saw. Sent as text."""

import json
import sys
import time

import msgspec

from c4bench.inject import catalogue
from c4bench.inject.registry import WITNESSES
from c4bench.model.fault import FaultRequest

CATALOGUE = catalogue.load()
for line in sys.stdin:
    spec, request = CATALOGUE.resolve(msgspec.json.decode(line, type=FaultRequest))
    witness = WITNESSES[spec.witness](request)
    before = witness.before()
    evidence = witness.during(time.time())
    answer = {"seen": evidence.observed_s is not None, "before": before, "during": evidence.values}
    sys.stdout.write(f"{json.dumps(answer)}\n")
    sys.stdout.flush()
