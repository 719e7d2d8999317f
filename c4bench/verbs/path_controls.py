"""All the path knobs there are, and the choice among them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from c4bench.verbs.flow_label import FlowLabel
from c4bench.verbs.lid_path_bits import PathBits
from c4bench.verbs.mlx5 import LagPort, LiveSourcePort
from c4bench.verbs.path import NoPathControl, PathControl

if TYPE_CHECKING:
    from c4bench.verbs.device import Device


def choose(device: Device) -> PathControl:
    """The first knob that works on `device`: ports before anything else, and what needs no draining before what does.

    Where none works, what is returned offers no choice and says why.
    """
    knobs: tuple[PathControl, ...] = (LiveSourcePort(), FlowLabel(), LagPort(), PathBits())
    obstacles = []
    for knob in knobs:
        obstacle = knob.obstacle(device)
        if not obstacle:
            return knob
        obstacles.append(f"{type(knob).__name__}: {obstacle}")
    return NoPathControl("; ".join(obstacles))
