"""Runs of lateness are told from what healthy members were late by, in their own communicator and in others."""

import numpy as np
from c4d_campaign import trial

from c4bench.c4d.signs.stragglers import EmpiricalNull

RUN = np.asarray([[0.07], [0.07], [0.07]])
OPS = np.asarray([[1], [2], [3]])
EVEN, UNEVEN = np.full(80, 0.02), np.linspace(0.0, 0.14, 500)


def test_a_run_is_forbidden_by_every_sample():
    """What an even history forbids is allowed where a sample beside it has as much lateness, in either order."""
    assert EmpiricalNull(EVEN).forbids(RUN, RUN, OPS)[2]
    assert not EmpiricalNull(EVEN, UNEVEN).forbids(RUN, RUN, OPS).any()
    assert not EmpiricalNull(UNEVEN, EVEN).forbids(RUN, RUN, OPS).any()
    assert EmpiricalNull(EVEN, EVEN / 2).forbids(RUN, RUN, OPS)[2]


def test_a_communicator_that_was_even_by_chance_accuses_nobody():
    """Before the fault a rank is late three times by what its peers in other communicators are late by in health."""
    (only,) = trial(30153).record.findings
    assert only.component.name == "job:15"
