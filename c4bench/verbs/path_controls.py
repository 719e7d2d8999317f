"""Choose the path control of a device."""

from c4bench import extensions
from c4bench.verbs.flow_label import FlowLabel
from c4bench.verbs.lid_path_bits import PathBits
from c4bench.verbs.mlx5 import LagPort, LiveSourcePort, SourcePortAndLagPort
from c4bench.verbs.path_control import NoPathControl, OpenDevice, PathControl

# In the order in which they are tried; those of others come after ours.
_OWN: dict[str, PathControl] = {
    "mlx5.source_port_and_lag_port": SourcePortAndLagPort(LiveSourcePort()),
    "flow_label_and_lag_port": SourcePortAndLagPort(FlowLabel()),
    "mlx5.source_port": LiveSourcePort(),
    "flow_label": FlowLabel(),
    "mlx5.lag_port": LagPort(),
    "lid_path_bits": PathBits(),
}
PATH_CONTROLS: extensions.Registry[PathControl] = extensions.Registry(
    extensions.PATH_CONTROLS, "a PathControl", lambda: _OWN, extensions.is_a(PathControl)
)


def choose(device: OpenDevice) -> PathControl:
    """The first path control that works on `device`; those for UDP source ports come first.

    If none works, the result offers no choice and has the reasons.
    """
    obstacles = []
    for control in PATH_CONTROLS.values():
        obstacle = control.obstacle(device)
        if not obstacle:
            return control
        obstacles.append(f"{type(control).__name__}: {obstacle}")
    return NoPathControl("; ".join(obstacles))
