"""The policy of C4P: what a plan covers, how jobs share, how often paths are traced, how long links stay closed."""

from typing import Literal

import msgspec

# After so many remarks nothing more is said of single flows: ranks may bring ever new ones.
REMARKS_AT_MOST = 1000


class HoldDown(msgspec.Struct, frozen=True):
    """How long a link that is back must stay up before it is used (RFC 2439), in seconds.

    The time is `first_s`, doubled with each loss within `forget_s` of the one before, at most `max_s`. A link that C4D
    blames is used again after `avoid_s`.
    """

    first_s: float = 0.2
    forget_s: float = 60.0
    max_s: float = 30.0
    avoid_s: float = 60.0


class PathPolicy(msgspec.Struct, frozen=True):
    """The policy of C4P. Times are in seconds.

    `scope` is what one plan covers: all jobs (`global`); for comparison each job alone, without the others (`job`), or
    nothing: every flow gets some known path (`random`). Without `dynamic` a plan stays as it was made. `sharing` counts
    all jobs alike (`equal`), or each with its `share` (`priority`).

    The paths of live flows are checked every `check_s`, every `urgent_check_s` while something is wrong. Paths that
    nothing has confirmed for `max_age_s` are learnt again before they are used. Once a connection has become slower by
    the fraction `min_slowdown`, its weights follow the throughput that is measured over `tuning_s`, if that gains as
    much.
    """

    scope: Literal["global", "job", "random"] = "global"
    dynamic: bool = True
    sharing: Literal["equal", "priority"] = "equal"
    hold_down: HoldDown = HoldDown()
    check_s: float = 1.0
    urgent_check_s: float = 0.1
    tuning_s: float = 0.25
    max_age_s: float = 600.0
    min_slowdown: float = 0.25
