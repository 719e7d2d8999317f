"""What a sample of mutants came to, in words."""

from c4bench.record.artefacts import LeftMutant, Mutants
from c4bench.report.statistics import share_interval


def summary(mutants: Mutants) -> str:
    """`270 of 300 mutants killed, 90.0 % (86.0 % to 93.2 %), 27 survived, 3 timed out; seed 1, 18234 sites`."""
    timed_out = sum(mutant.result == "timed out" for mutant in mutants.left)
    survived, total = len(mutants.left) - timed_out, mutants.killed + len(mutants.left)
    share = share_interval(mutants.killed, total)
    return (
        f"{mutants.killed} of {total} mutants killed, {share.mean:.1%} ({share.low:.1%} to {share.high:.1%}), "
        f"{survived} survived, {timed_out} timed out; seed {mutants.seed}, {mutants.sites} sites"
    )


def line(mutant: LeftMutant) -> str:
    """`c4bench/steer/decide.py:12 survived: `if a < b:` became `if a <= b:``."""
    return f"{mutant.path}:{mutant.line} {mutant.result}: `{mutant.was}` became `{mutant.now}`"
