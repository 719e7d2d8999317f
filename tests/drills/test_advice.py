"""What `c4bench detect` advises on inputs as people have them: never a command against somebody who is not to blame."""

import re

from case_truths import CASES, TRUTHS

from c4bench.cli.main import main
from c4bench.model.measurement import Clock, Outcome
from c4bench.record import Ledger

COMMANDS = {"slurm": r"nodename=(\S+)", "kubernetes": r"patch node (\S+)"}


def test_no_command_is_printed_against_somebody_who_is_not_to_blame(drills, request, capsys):
    """Of all cases, none gets a drain command for a host that the truth does not blame."""
    wrong, printed = [], 0
    for truth in TRUTHS:
        for scheduler, host in COMMANDS.items():
            main(["detect", "--reasons", scheduler, str(CASES / truth.case)])
            lines = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("#")]
            drained = {found for line in lines for found in re.findall(host, line)}
            printed += len(lines)
            if drained - set(truth.blamed):
                wrong.append(truth.case)
    ledger = Ledger(drills, request.node.nodeid)
    taken = ledger.measure("advice.wrong", float(len(wrong)), "1", equals=0, clock=Clock.NONE, cases=len(TRUTHS))
    assert taken.outcome is Outcome.PASS, wrong
    assert printed
