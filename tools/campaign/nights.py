"""The campaign of each night has the seed of its date, which nothing has been tuned on."""

from collections.abc import Iterable
from datetime import UTC, date, datetime

from c4bench.errors import UsageError
from c4bench.record import RunDirectory
from tools.campaign.trial_record import FILE

# Seeds below may be tuned on.
FIRST_UNSEEN = 10_000
# Seeds from here on are never drawn.
_RESERVED = 900_000


def night_seed(day: date | None = None) -> int:
    """The seed of a day (default: today, UTC): its number in the proleptic Gregorian calendar.

    Raises UsageError for days whose number is not between `FIRST_UNSEEN` and the reserved seeds (years 28 to 2465).
    """
    seed = (day or datetime.now(UTC).date()).toordinal()
    if not FIRST_UNSEEN <= seed < _RESERVED:
        raise UsageError(f"no night has the seed {seed}; set this machine's date")
    return seed


def nights(runs: Iterable[RunDirectory], most: int) -> list[RunDirectory]:
    """The newest `most` of the runs that tried something with a seed drawn from a date, oldest first."""
    tried = [run for run in runs if run.started and (run.path / FILE).exists()]
    drawn = [run for run in tried if FIRST_UNSEEN <= run.provenance().seed < _RESERVED]
    return sorted(drawn, key=lambda run: run.provenance().seed)[-most:]
