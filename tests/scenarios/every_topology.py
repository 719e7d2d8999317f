"""`python every_topology.py RUN_DIR...`: which scenarios ran on which topology, and those that ran on none."""

import sys
from collections import defaultdict
from pathlib import Path

from c4bench.model.measurement import Outcome
from c4bench.report import evaluate_run


def ran(directories):
    """The outcome of each scenario that ran, by scenario and run directory; a scenario that never ran has none."""
    found = defaultdict(dict)
    for directory in directories:
        for ending in evaluate_run(directory).scenarios:
            outcomes = found[ending.scenario]
            if ending.outcome is not Outcome.SKIP:
                outcomes[directory.name] = ending.outcome
    return dict(found)


def main(directories):
    """Print a line for each scenario; exit with 1 if one ran nowhere, or if there is no run."""
    found = ran([Path(directory) for directory in directories if (Path(directory) / "run.json").exists()])
    if not found:
        sys.exit("every_topology: no run directory given that holds scenarios; use `make every-topology`")
    for scenario, outcomes in sorted(found.items()):
        words = [f"{topology} {outcome}" for topology, outcome in sorted(outcomes.items())]
        sys.stdout.write(f"{scenario}: {', '.join(words) or 'RAN ON NO TOPOLOGY'}\n")
    never = [scenario for scenario, outcomes in found.items() if not outcomes]
    sys.stdout.write(f"{len(found)} scenarios, {len(never)} ran on no topology\n")
    sys.exit(1 if never else 0)


if __name__ == "__main__":
    main(sys.argv[1:])
