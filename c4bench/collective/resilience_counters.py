"""Counters of a resilient communicator."""

import msgspec


class ResilienceCounters(msgspec.Struct, frozen=True):
    """What happened to this rank's rails.

    `states` counts rails by state; `died` and `returned` count transitions; `repeated` counts duplicate messages, which
    are ignored. `reasons` are the distinct reasons why rails died. `findings` are the components at fault, each with
    its alternatives. `split` counts all-reduces that avoided degraded ranks, `reordered` those over a reordered ring
    (see `collective.degraded`).
    """

    states: dict[str, int]
    died: int
    returned: int
    repeated: int
    reasons: tuple[str, ...]
    findings: tuple[tuple[str, ...], ...]
    split: int = 0
    reordered: int = 0
