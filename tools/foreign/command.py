"""`python -m tools foreign`: how often `c4bench detect` is right on dumps of simulated jobs that run ahead."""

import argparse
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence

from c4bench.cli import Commands
from c4bench.errors import UsageError
from c4bench.evidence.judging.hangs import Ground
from tools.foreign.run_ahead import FaultKind
from tools.foreign.trials import Trial, trials
from tools.shares import share_interval

_FORMAT = "flight recorder"
_TRIALS = 400
_UNSEEN = 40_001


def register(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "foreign", help="how often `c4bench detect` is right on simulated jobs in groups of several kinds"
    )
    parser.add_argument("--trials", type=int, default=_TRIALS, help=f"how many jobs (default {_TRIALS})")
    parser.add_argument("--seed", type=int, default=_UNSEEN, help=f"the first one's seed (default {_UNSEEN})")
    parser.add_argument("--misses", action="store_true", help="also print what was said where it was not exact")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    if arguments.trials < 1:
        raise UsageError("--trials: give 1 or more")
    whole: list[Trial] = []
    without: list[Trial] = []
    for seed in range(arguments.seed, arguments.seed + arguments.trials):
        for kept, one in zip((whole, without), trials(seed), strict=True):
            kept.append(one)
            if arguments.misses and not one.exact:
                sys.stdout.write(f"# {one.line}\n")
                sys.stdout.flush()
    for name, found in (("all", whole), ("a tenth missing", without)):
        sys.stdout.writelines(f"{line}\n" for line in _lines(name, found))
    return 0


def _lines(files: str, found: Sequence[Trial]) -> Iterator[str]:
    """The measurements of trials of which these `files` were there."""
    for kind in FaultKind:
        some = [one for one in found if one.fault == kind]
        labels = f"format={_FORMAT}, files={files}, fault={kind}"
        if some:
            yield _share(f"foreign.correct_fraction ({labels})", some, lambda one: one.exact)
            yield _share(f"foreign.among_fraction ({labels})", some, lambda one: one.among)
            yield _share(f"foreign.accused_fraction ({labels})", some, lambda one: one.accused)
    yield _share(f"foreign.wrong_confident (files={files})", found, lambda one: one.confident)
    times_s = sorted(one.read_s for one in found)
    yield f"foreign.read_s (files={files}): median {statistics.median(times_s):.3g}, largest {times_s[-1]:.3g}"
    for ground in Ground:
        named = [one.grounds.get(ground, (0, 0)) for one in found]
        right, of = (sum(counts) for counts in zip(*named, strict=True))
        yield f"named as {ground} (files={files}): {right} of {of} to blame"


def _share(name: str, found: Sequence[Trial], holds: Callable[[Trial], bool]) -> str:
    count = sum(map(holds, found))
    share = share_interval(count, len(found))
    return f"{name}: {share.mean:.3f} ({share.low:.3f} to {share.high:.3f}), {count} of {len(found)}"
