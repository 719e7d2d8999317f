"""Simulated jobs that run ahead, and what is said of their dumps; the truth is what the simulator did."""

import argparse
import random

import pytest

from tools.foreign.command import register
from tools.foreign.layout import Dimension, Layout, Waits, drawn_program
from tools.foreign.run_ahead import Fault, FaultKind, RunAhead
from tools.foreign.trials import trials


def test_each_kind_of_groups_divides_the_ranks():
    """Every rank is in one group of each kind, and the stages of a pipeline are as far apart as a stage has ranks."""
    layout = Layout(tensor=2, context=2, data=4, pipeline=3, expert=2)
    members = {dimension: [] for dimension in Dimension}
    for dimension, ranks in layout.groups():
        members[dimension] += ranks
    assert all(sorted(ranks) == list(range(48)) for ranks in members.values())
    assert next(ranks for dimension, ranks in layout.groups() if dimension is Dimension.PIPELINE) == (0, 16, 32)


@pytest.mark.parametrize("seed", range(6))
def test_a_healthy_job_comes_to_its_end(seed):
    """Without a fault all ranks make all their calls, and all calls end, however programs wait."""
    rng = random.Random(seed)
    program = drawn_program(rng, 16 << seed % 3, 2000)
    for waits in Waits:
        assert RunAhead(program._replace(waits=waits), ()).is_healthy()


def test_a_rank_that_stops_is_behind_in_all_its_groups():
    """A rank that stops calling has called less than each member of each of its groups, and nobody ends the step."""
    program = drawn_program(random.Random(3), 32, 2000)._replace(waits=Waits.ITERATION)
    calls = program.calls(program.layout.stage(5), 2)
    job = RunAhead(program, (Fault(FaultKind.STOPPED, 5, len(calls) // 2 + 1),))
    assert job.culprits() == (5,)
    for group in job.runs[5].groups.values():
        peers = [job.runs[rank] for rank in group.members if job.layout.stage(rank) == job.layout.stage(5)]
        assert min(run.made for run in peers) == job.runs[5].made < max(run.made for run in peers) or len(peers) == 1


# Two ranks of a group stop, one after the other; a rank at fault is lost with its file; so is one that only waits; one
# hangs in a call whose other members have started it, of which one left no file; one calls what nobody else does.
@pytest.mark.parametrize(
    ("seed", "fault"),
    [(203, "stopped"), (13, "stopped"), (63, "stopped"), (213, "mismatch"), (1037, "inside"), (1082, "mismatch")],
)
def test_the_ranks_at_fault_are_named(seed, fault):
    """From all dumps the ranks at fault are named and nobody else; without a tenth no healthy rank is named alone."""
    whole, without = trials(seed)
    assert (whole.fault, whole.exact, whole.accused) == (fault, True, False)
    assert not without.accused


def test_shares_are_printed_with_their_intervals(capsys):
    """The command measures a few jobs and prints shares with their 95 % intervals."""
    parser = argparse.ArgumentParser()
    register(parser.add_subparsers())
    arguments = parser.parse_args(["foreign", "--trials", "1", "--seed", "13", "--misses"])
    assert arguments.run(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    shown = (
        "foreign.correct_fraction (format=flight recorder, files=all, fault=stopped): 1.000 (0.025 to 1.000), 1 of 1"
    )
    assert shown in lines
