"""C4P, path planning for training traffic (C4, arXiv 2406.04594). Pure: no I/O, no clock."""

from c4bench.c4p.conditions import Conditions
from c4bench.c4p.knowledge.atlas import Atlas
from c4bench.c4p.placement.planner import Assignment, Change, Planner

__all__ = ["Assignment", "Atlas", "Change", "Conditions", "Planner"]
