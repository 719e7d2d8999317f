"""How C4P behaves: what a plan covers, how jobs share, how often it looks, how patient it is."""

from typing import Literal

import msgspec

from c4bench.c4p.link_health import HoldDown


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
