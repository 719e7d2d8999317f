"""Lines of PyTorch's NCCL watchdog in a log: a rank that gave up waiting for an operation, and how far it had come.

Source: `ProcessGroupNCCL.cpp` of PyTorch 2.5 to 2.8. `[rankN]` is the rank in the job; the number in a group's bracket
is that in the group. What waited in the operation is not what held it up.
"""

import re
from collections.abc import Iterable

import msgspec

from c4bench.budget import Account
from c4bench.evidence.fields import integer, kind
from c4bench.evidence.limits import MOST_RANKS, short_name
from c4bench.model.evidence import TimedOut

_TIMEOUT = re.compile(
    r"\[rank(\d{1,9})\]:.{0,200}? Watchdog caught collective operation timeout: "
    r"WorkNCCL\(SeqNum=(\d{1,18}), OpType=(\w{1,64}),.{0,200}?Timeout\(ms\)=(\d{1,12})\)"
)
_STATUS = re.compile(
    r"\[rank(\d{1,9})\]:.{0,200}?PG GUID (\w{1,64})(?:\((\w{1,64})\))?.{0,200}? work sequence id: (\d{1,18}) "
    r"PG status: last enqueued work: (\d{1,18}), last completed work: (\d{1,18})"
)
_LONGEST_LINE = 4096


def timed_out(lines: Iterable[str], file: str, account: Account) -> tuple[TimedOut, ...]:
    """Each rank that timed out in an operation, once. Raises OverBudgetError."""
    found: dict[tuple[int, int], TimedOut] = {}
    for line in lines:
        if "atchdog" not in line or len(line) > _LONGEST_LINE:
            continue
        if (one := _TIMEOUT.search(line)) and int(one[1]) < MOST_RANKS:
            key = int(one[1]), integer(one[2])
            if key not in found:
                account.spend(records=1)
                found[key] = TimedOut(file, *key, short_name(kind(one[3])), int(one[4]) / 1000)
        elif (one := _STATUS.search(line)) and (waits := found.get((int(one[1]), integer(one[4])))):
            group = short_name(one[3] or one[2])
            found[int(one[1]), integer(one[4])] = msgspec.structs.replace(
                waits, group=group, enqueued=integer(one[5]), completed=integer(one[6])
            )
    return tuple(found.values())
