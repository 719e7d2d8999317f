"""What PyTorch's torchfrtrace printed about flight recorder dumps: its reports of single collectives, as calls.

Source: `EntryState.log` in `torch/distributed/flight_recorder/components/types.py`, PyTorch 2.6 to 2.13. A report
begins with its finding and the sequence number; then come lines of a name and a value, in an order that has changed.
The ranks are those of the job. Of ranks that are missing, it is known that they have not called the collective.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from msgspec.structs import replace

from c4bench.budget import FILE, Account, OverBudgetError
from c4bench.evidence.fields import integer, kind
from c4bench.evidence.limits import MOST_LINES, MOST_RANKS, UnreadableError, short_name
from c4bench.evidence.lines import bare
from c4bench.model.evidence import FLIGHT_RECORDER, Call, CallState, MemberEvidence, Problem, Reading, SourceFile

FORMAT = "torchfrtrace report"
_HEAD = re.compile(
    rb"(?:Not all ranks joining collective,? (?:sequence number: )?|Collective (?:sequence number: )?)(\d{1,18})"
    rb"(?: at entry \d+)?(?: has)?(?: errors)?\s*$",
    re.MULTILINE,
)
_LINE = re.compile(
    r"^(?:(?:INFO|WARNING|ERROR)\W{1,3})?"
    r"(group info|collective|missing ranks|input sizes|expected ranks|collective state|error msg): (.*)$"
)
_ERROR = re.compile(
    r"Culprit rank (\d{1,9}); Error type: (\w{1,64})"
    r"(?:, Expected [^']{1,99}'(.{0,400}?)' does not match found [^']{1,99}'(.{0,400}?)'(?=, Culprit rank |$))?"
)
_WORLD = "0"
_SIZES = re.compile(r"\d{1,18}")
_CANNOT = "torchfrtrace report: it shows the collectives that it complains of, and not what ranks called after them"


class _Report(NamedTuple):
    """One collective: its lines by name, and the line of the file where it begins."""

    seq: int
    line: int
    values: dict[str, str]


def recognises(head: bytes, _name: str) -> bool:
    """Whether a file that begins with `head` has reports."""
    return b"group info: " in head and bool(_HEAD.search(head))


def read(data: bytes, file: str) -> Reading:
    """The calls that reports in `data` tell of. Raises UnreadableError."""
    if data.count(b"\n") > MOST_LINES:
        raise UnreadableError(f"it has more than {MOST_LINES} lines")
    members: list[MemberEvidence] = []
    problems: list[Problem] = []
    account = Account(file, FILE)
    for report in _reports(data):
        try:
            found = list(_members(report, file, account))
        except OverBudgetError as error:
            raise UnreadableError(str(error).removeprefix(f"{file}: ")) from None
        if not found:
            problems.append(Problem(file, "the report does not name its ranks and is not used", f"line {report.line}"))
        members += found
    ranks = tuple(sorted({one.rank for one in members}))
    world = max((one.size for one in members if one.comm == _WORLD), default=0)
    return Reading(tuple(members), (SourceFile(file, FORMAT, "", ranks),), tuple(problems), (_CANNOT,), world)


def _reports(data: bytes) -> Iterator[_Report]:
    heads = list(_HEAD.finditer(data))
    for place, head in enumerate(heads):
        end = heads[place + 1].start() if place + 1 < len(heads) else len(data)
        lines = data[head.end() : end].decode("utf-8", "replace").splitlines()
        values = {found[1]: found[2].strip() for line in lines if (found := _LINE.match(bare(line).strip()))}
        yield _Report(int(head[1]), 1 + data.count(b"\n", 0, head.start()), values)


def _members(report: _Report, file: str, account: Account) -> Iterator[MemberEvidence]:
    """The members of the group, each with its call of the collective; those that are missing without one."""
    values = report.values
    expected, missing = _ranks(values.get("expected ranks", "")), _ranks(values.get("missing ranks", ""))
    account.spend(records=len(expected), names=len(expected))
    word, sizes = short_name(kind(values.get("collective", ""))), values.get("input sizes", "")
    called = Call(report.seq, word, _state(values.get("collective state", "")), size_bytes=_elements(sizes))
    calls = dict.fromkeys(expected, called)
    for error in _ERROR.finditer(values.get("error msg", "")):
        if int(error[1]) in calls:
            usual, other = _unlike(called, error[2], error[3] or "", error[4] or "")
            calls = {rank: usual if call is called else call for rank, call in calls.items()} | {int(error[1]): other}
            called = usual
    comm = short_name(values.get("group info", "").partition(":")[0])
    for member, (rank, call) in enumerate(calls.items()):
        made, last = ((), report.seq - 1) if rank in missing else ((call,), report.seq)
        yield MemberEvidence(file, FLIGHT_RECORDER, comm, rank, member, expected, len(expected), calls=made,
                             last_seq=last)  # fmt: skip


def _unlike(call: Call, error: str, expected: str, found: str) -> tuple[Call, Call]:
    """The call of most ranks and that of a culprit, as an error's words tell them apart."""
    if error == "COLLECTIVE_TYPE_MISMATCH":
        return call, replace(call, kind=short_name(kind(found)))
    if error == "COLLECTIVE_DTYPE_MISMATCH":
        return replace(call, dtype=short_name(expected)), replace(call, dtype=short_name(found))
    if error == "COLLECTIVE_STATE_MISMATCH":
        return replace(call, state=_state(expected)), replace(call, state=_state(found))
    return replace(call, size_bytes=_elements(expected)), replace(call, size_bytes=_elements(found))


def _state(word: str) -> CallState:
    return CallState(word) if word in {"scheduled", "started", "completed"} else CallState.UNKNOWN


def _elements(sizes: str) -> int:
    """What stands for the bytes, whose type the report does not have: the product of all lengths; -1 for none."""
    product = 1 if sizes else -1
    for number in _SIZES.findall(sizes):
        product = product * int(number) % (1 << 63)
    return product


def _ranks(written: str) -> tuple[int, ...]:
    """The ranks in a set such as `{2, 10}`, in order; none if it is cut, or any of them is no rank."""
    if not (written.startswith("{") and written.endswith("}")):
        return ()
    ranks = sorted({integer(part.strip()) for part in written[1:-1].split(",")})
    return tuple(ranks) if ranks and ranks[0] >= 0 and ranks[-1] < MOST_RANKS else ()
