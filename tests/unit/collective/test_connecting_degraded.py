"""NICs that are lost, or change, while ranks connect."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from night_cases import at_night
from storm import (
    SMALL,
    all_up_again,
    resilient,
    states,
    summed,
    unfailed,
)
from world import World


def test_nics_that_are_down_while_connecting(world):
    """NICs that are down when ranks connect are treated as lost: sums are exact, and the NICs are used once back."""
    job = resilient(world, 3, 3, down={(1, 0), (1, 1), (2, 0)})

    def work(comm):
        summed(comm, 40_000)
        lost = states(comm)
        all_up_again(comm, job.bring_up)
        summed(comm, 40_000)
        return lost

    outcomes = unfailed(job, work)
    assert all(set(lost) != {"up"} for lost in outcomes)


@pytest.mark.parametrize("fault", ["moving", *at_night("nameless")])
def test_gid_that_changes_while_connecting(world, fault):
    """A NIC whose GID is missing, or changes, when ranks connect is lost until it can be reconnected."""
    job = resilient(world, 3, **{fault: {(1, 0)}})

    def work(comm):
        summed(comm, 40_000)
        lost = states(comm)
        all_up_again(comm, job.bring_up)
        summed(comm, 40_000)
        return lost, comm.resilience.died

    for lost, died in unfailed(job, work):
        assert died
        assert set(lost) != {"up"} or fault == "moving"


def test_no_gid_while_connecting_without_resilience(world):
    """Without resilience a NIC without a GID is an error on every rank at once, with its name."""
    job = world(3, 2, nameless={(1, 0)}, **SMALL)
    errors = [each.exception() for each in job.joined]
    assert {error.status for error in errors} == {"DEVICE", "ABORTED"}
    assert all("rxe0: the port has no address" in str(error) for error in errors)


def test_ranks_that_disagree_about_resilience(tmp_path):
    """If one rank is resilient and another is not, both raise an error and connect nothing."""
    job = World(tmp_path, 2, 2, absent=(0, 1), **SMALL)
    with ThreadPoolExecutor(2) as pool:
        joining = [pool.submit(job.join, rank, resilient=bool(rank)) for rank in range(2)]
        errors = [each.exception() for each in joining]
    assert {error.status for error in errors} <= {"MISMATCH", "ABORTED"}
    assert all("resilient" in str(error) for error in errors)
