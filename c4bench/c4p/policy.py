"""How C4P behaves: what a plan covers, how jobs share, how often it looks, how patient it is."""

from typing import Literal

import msgspec


class HoldDown(msgspec.Struct, frozen=True):
    """How long a link that is back has to stay before it is used: `calm_s`, doubled with each loss within `memory_s`.

    Never more than `most_s`. A blamed link is tried again after `blame_s`.
    """

    calm_s: float = 0.2
    memory_s: float = 60.0
    most_s: float = 30.0
    blame_s: float = 60.0


class PathPolicy(msgspec.Struct, frozen=True):
    """How C4P behaves.

    `scope` is what one plan covers: all jobs (`global`); for comparison each job alone, blind to the others (`job`), or
    nothing: every flow is pinned to some known path (`random`). What is not `dynamic` stays as it was made.
    `sharing` gives all jobs the same room (`equal`), or room by their `share` (`priority`). The paths of live flows are
    looked at every `look_s`, every `hurry_s` while something is amiss: at most `traces` source ports, `others` a pair
    that no flow uses. Weights follow completion times over `settle_s` once a connection has become slower by `calm`,
    where that makes it faster by as much. What nothing has confirmed for `fresh_s` is learnt anew before it is used.
    """

    scope: Literal["global", "job", "random"] = "global"
    dynamic: bool = True
    sharing: Literal["equal", "priority"] = "equal"
    patience: HoldDown = HoldDown()
    look_s: float = 1.0
    hurry_s: float = 0.1
    settle_s: float = 0.25
    traces: int = 512
    others: int = 2
    fresh_s: float = 600.0
    calm: float = 0.25
