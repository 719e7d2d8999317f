"""Parameters that do not fit each other are refused before anything starts."""

import msgspec
import pytest

from c4bench.errors import UsageError
from c4bench.workload.diloco.parameters import Diloco, check, check_ranks

GOOD = {"sites": [[0, 1], [2, 3]], "steps": 200}


def test_the_defaults_are_the_papers():
    """H = 100, three layers a fragment, strided, tau 1, alpha 0.5, E3M0, an outer rate of 0.4: nothing to object to."""
    check(GOOD)
    own = msgspec.convert(GOOD, Diloco)
    assert (own.inner_steps, own.model.layers // own.fragments, own.overlap, own.mixing) == (100, 3, 1, 0.5)
    assert (own.quantisation, own.outer_rate, own.needed, own.workers) == ("e3m0", 0.4, 2, 2)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"sites": [[0, 1, 2, 3]]}, "sites: 1 given; DiLoCo needs at least two"),
        ({"sites": [[0, 1], [2]]}, "sites: they have 2, 1 ranks; give all the same number"),
        ({"sites": [[], []]}, "sites: they have 0, 0 ranks"),
        ({"sites": [[0, 1], [1, 2]]}, "sites: name each rank from 0 to 3 once"),
        ({"inner_steps": 0}, "inner_steps: 0 must be positive"),
        ({"steps": 150}, "steps: 150 must be a positive multiple of inner_steps, 100"),
        ({"steps": 0}, "steps: 0 must be a positive multiple"),
        ({"fragments": 25}, "fragments: 25 must be from 1 to 24"),
        ({"fragments": 0}, "fragments: 0 must be from 1 to 24"),
        ({"spacing": 11}, "inner_steps: 100 is not a multiple of spacing 11"),
        ({"spacing": -1}, "spacing: -1 must be positive"),
        ({"overlap": 11}, "overlap: 11 inner steps must be from 0 to 10"),
        ({"mixing": 1.5}, "mixing: 1.5 must be from 0 to 1"),
        ({"mixing": float("nan")}, "mixing: nan must be from 0 to 1"),
        ({"quorum": 3}, "quorum: 3 must be more than half of the 2 sites"),
        ({"quorum": 1}, "quorum: 1 must be more than half of the 2 sites"),
        ({"grace_s": 0}, "grace_s: 0 must be positive"),
        ({"outer_rate": 0}, "outer_rate: 0 must be positive"),
        ({"outer_momentum": 1}, "outer_momentum: 1 must be from 0 to below 1"),
        ({"rate": 0}, "rate: 0 must be positive"),
        ({"last_rate": 2}, "last_rate: 2 must be from 0 to 1"),
        ({"sequences": 0}, "sequences: 0 must be positive"),
        ({"compute_s": -1}, "compute_s: -1 must not be negative"),
        ({"evaluate_every": 150}, "evaluate_every: 150 must be a multiple of inner_steps, 100"),
        ({"checkpoints": "x", "checkpoint_every": 50}, "checkpoint_every: 50 must be a multiple of inner_steps, 100"),
        ({"checkpoints": "x"}, "checkpoints: give the folder and checkpoint_every, or neither"),
        ({"profile": "idle"}, "profile: 'idle' is none of brisk, patient"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(changed, words):
    """One line says which parameter is wrong and why."""
    with pytest.raises(UsageError) as raised:
        check(GOOD | changed)
    assert str(raised.value).startswith(words)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("changed", [{"quantisation": "fp4"}, {"pattern": "random"}, {"method": "local"}, {"lr": 1}])
def test_unknown_names_are_refused(changed):
    """Names that do not exist are errors of validation, which programs report with the key."""
    with pytest.raises(msgspec.ValidationError):
        check(GOOD | changed)


def test_the_sites_are_those_of_the_job():
    """Four ranks at sites do not fit a job of eight."""
    with pytest.raises(UsageError, match="sites: 4 ranks are named, and the job has 8"):
        check_ranks(msgspec.convert(GOOD, Diloco), 8)


def test_the_inner_rate_falls_along_a_cosine():
    """Half way between the first and the last rate in the middle, a tenth at the end."""
    own = msgspec.convert(GOOD | {"rate": 0.01}, Diloco)
    assert own.rate_at(1) == pytest.approx(0.01, rel=1e-3)
    assert own.rate_at(100) == pytest.approx(0.0055)
    assert own.rate_at(200) == pytest.approx(0.001)
