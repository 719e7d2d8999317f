"""The simulated bandwidth between sites is that of the Streaming DiLoCo paper."""

from c4bench.cost.utilisation import BITS_PER_PARAMETER, cells
from c4bench.model.measurement import Clock
from tools.diloco_paper.published import on_grid, within_step


def test_table_of_the_paper_is_reproduced(measure):
    """Of the 75 cells of the paper's Table 4, most are met exactly and all within a step of its grid of bandwidths."""
    table = cells()
    labels = {"cells": len(table), "bits_per_parameter": BITS_PER_PARAMETER}
    measure("diloco.table4_on_grid", on_grid(table), unit="1", at_least=65, clock=Clock.NONE, **labels)
    measure("diloco.table4_within_step", within_step(table), unit="1", equals=75, clock=Clock.NONE, **labels)
