"""Streaming DiLoCo between two sites: what it learns, and what it sends over the long link."""

import msgspec
import numpy as np
import pytest

from c4bench.model.measurement import Clock
from c4bench.workload.diloco.parameters import Diloco
from c4bench.workload.diloco.together import train_together

SMALL = {"model": {"layers": 4, "width": 16, "context": 16}, "inner_steps": 12, "fragments": 2, "sequences": 1}
DONE_S = 120.0


@pytest.mark.needs(hosts=8)
def test_a_job_at_two_sites_learns_to_the_bit_what_one_process_learns(train, measure):
    """Losses and evaluations of four ranks over the fabric are those of the same training without one."""
    parameters = SMALL | {"steps": 24, "compute_s": 0.02}
    running = train(2, 2, sited=4, **parameters)
    running.wait("trained", DONE_S)
    sites = msgspec.to_builtins(running.spec.parameters["sites"])
    expected = train_together(msgspec.convert(parameters | {"sites": sites}, Diloco), running.spec.seed)
    losses = running.losses()
    assert sorted(losses) == list(range(24))
    same = np.mean([losses[step] == loss for step, loss in enumerate(expected.losses[0])])
    measure("diloco.loss_identical", float(same), equals=1, clock=Clock.NONE)
    final = {float.fromhex(report["loss"]) for report in running.reports("evaluation") if report["step"] == 24}
    assert final == {expected.final}
