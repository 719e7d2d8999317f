"""Run a command and say what it took, beside its limits: `timed.py suite.total_s=1200 suite.processor_s -- make ...`.

A name that ends in `.processor_s` is the processor time of the command and of all that it started and waited for; any
other is its time by the machine's clock. Both are also lines in `reports/runs/timings.jsonl`. A missed limit is printed
as missed, and the exit code stays the command's: the machine may be a slow one, or a busy one.
"""

import os
import resource
import shlex
import subprocess
import sys
import time
from pathlib import Path

from c4bench.model.measurement import Clock, Outcome
from c4bench.record import Ledger, RunDirectory
from c4bench.report.headlines import sentence

ROOT = Path("reports/runs")


def main(words):
    """Run the command after `--`, and record what the names before it ask for."""
    middle = words.index("--")
    wanted, command = words[:middle], words[middle + 1 :]
    began_s = time.monotonic()
    code = subprocess.run(command, check=False).returncode
    took_s = time.monotonic() - began_s
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    ROOT.mkdir(parents=True, exist_ok=True)
    ledger = Ledger(RunDirectory(ROOT), shlex.join(command))
    for each in wanted:
        name, _, limit = each.partition("=")
        value = used.ru_utime + used.ru_stime if name.endswith(".processor_s") else took_s
        taken = ledger.measure(
            name,
            round(value, 1),
            "s",
            at_most=float(limit) if limit else None,
            clock=Clock.MACHINE,
            exit_code=code,
            processors=len(os.sched_getaffinity(0)),
        )
        how = "missed" if taken.outcome is Outcome.FAIL else taken.outcome
        sys.stdout.write(f"{how:<13} {sentence(taken)}\n")
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
