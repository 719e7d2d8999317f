"""What faults cost: the four rows of C4's downtime table, for a user's own fault rates and measured stage times.

Arithmetic of arXiv 2406.04594, section on C4D's evaluation: each fault costs the work since the last checkpoint, the
time to see it, the time to name and isolate the part, and the time until the first good iteration.
"""

from collections.abc import Mapping, Sequence

import msgspec

# A month of 30 days.
_SECONDS_A_MONTH = 30 * 86400.0
# The stages of a row's downtime, in order.
ROWS = ("post_checkpoint", "detection", "diagnosis_isolation", "re_initialisation")


class Stages(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Seconds from onset to alarm, from there to isolation (naming included), from there to the first good iteration.

    `checkpoint_interval_s`: half of it is lost with every fault, on average.
    """

    detection_s: float
    diagnosis_isolation_s: float
    re_initialisation_s: float
    checkpoint_interval_s: float


class FaultRates(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How often a month a kind of fault hits the whole job, and its stages before and after.

    `after` may be left out where nothing changes; it is then as before.
    """

    per_month: float
    before: Stages
    after: Stages | None = None


class DowntimeRow(msgspec.Struct, frozen=True):
    """A share of the month, before and after; 0.31 is 31 %."""

    name: str
    before: float
    after: float


def downtime_table(faults: Mapping[str, FaultRates]) -> tuple[DowntimeRow, ...]:
    """The four rows and their total, over all kinds of fault.

    Raises ValueError for a rate or a time that is negative or no number, or when faults take more than the month has.
    """
    for kind, fault in faults.items():
        _check(kind, fault)
    before = _shares([(fault.per_month, fault.before) for fault in faults.values()])
    after = _shares([(fault.per_month, fault.after or fault.before) for fault in faults.values()])
    rows = map(DowntimeRow, (*ROWS, "total"), (*before, sum(before)), (*after, sum(after)))
    if (most := max(sum(before), sum(after))) > 1.0:
        raise ValueError(f"faults take {most:.0%} of the month; lower the rates or the times")
    return tuple(rows)


def _shares(faults: Sequence[tuple[float, Stages]]) -> list[float]:
    """What each row takes of a month with so many faults of such stages."""
    lost_s = dict.fromkeys(ROWS, 0.0)
    for per_month, stages in faults:
        lost_s["post_checkpoint"] += per_month * stages.checkpoint_interval_s / 2
        for name in ROWS[1:]:
            lost_s[name] += per_month * getattr(stages, f"{name}_s")
    return [row_s / _SECONDS_A_MONTH for row_s in lost_s.values()]


def _check(kind: str, fault: FaultRates) -> None:
    stages = [stage for stage in (fault.before, fault.after) if stage is not None]
    values = [fault.per_month, *(value for stage in stages for value in msgspec.structs.astuple(stage))]
    if not all(0 <= value < float("inf") for value in values):
        raise ValueError(f"{kind}: rates and times are 0 or more; found {min(values):g} to {max(values):g}")
