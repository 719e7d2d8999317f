"""Choose the path control of a device."""

from c4bench.verbs.flow_label import FlowLabel
from c4bench.verbs.lid_path_bits import PathBits
from c4bench.verbs.mlx5 import LagPort, LiveSourcePort, SourcePortAndLagPort
from c4bench.verbs.path_control import NoPathControl, OpenDevice, PathControl

# In the order in which they are tried.
PATH_CONTROLS: tuple[PathControl, ...] = (
    SourcePortAndLagPort(LiveSourcePort()),
    SourcePortAndLagPort(FlowLabel()),
    LiveSourcePort(),
    FlowLabel(),
    LagPort(),
    PathBits(),
)


def choose(device: OpenDevice) -> PathControl:
    """The first path control that works on `device`; those for UDP source ports come first.

    If none works, the result offers no choice and has the reasons.
    """
    obstacles = []
    for control in PATH_CONTROLS:
        obstacle = control.obstacle(device)
        if not obstacle:
            return control
        obstacles.append(f"{type(control).__name__}: {obstacle}")
    return NoPathControl("; ".join(obstacles))
