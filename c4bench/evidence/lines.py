r"""A line of a log without what launchers, log shippers and terminals put around it, and what these say of its origin.

Known are Open MPI and PRRTE (`[1,0]<stdout>:`, `[prterun-host-77@1,0]<stderr>: `), `srun --label` (`12: `), MPICH and
Intel MPI (`[12] `), torchrun (`[default0]:`), PyTorch (`[rank3]:`, `rank3: `), Ray (`(Worker pid=7, ip=192.0.2.1) `),
Docker Compose (`NAME-1  | `), quotes and mail (`> `), Kubernetes (`[pod/NAME/CONTAINER] `, the runtime's
`TIME stderr F `), journals (`TIME HOST PROCESS[PID]: `), parallel shells (`host12: `) and colours. What is no such
prefix stays as it is, leading blanks too.
"""

import re
from typing import NamedTuple

LONGEST_LINE = 8192  # characters that are looked at

# Colours, movements of the cursor, titles of windows; then any other control character but the tab.
_ESCAPES = re.compile(
    r"\x1b\[[0-?]{0,64}[ -/]{0,8}[@-~]|\x1b\][^\x07\x1b]{0,512}(?:\x07|\x1b\\)|\x1b[@-Z\\^_]|[\x00-\x08\x0b-\x1f\x7f]"
)
# `[job,rank]<stream>:`, with a blank where the job has a name; within a line too, where two writes are joined.
_MPI = re.compile(r"\[([\w.-]{1,128}@)?\d{1,9},(\d{1,9})\](?:\[[^\]]{0,128}\])?<(?:stdout|stderr|stddiag)>:(?(1) ?)")
_DATE = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?"
_SYSLOG = r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d"
_PREFIXES = tuple(
    re.compile(form)
    for form in (
        r"(?:> ?){1,8}",
        rf"(?P<time>{_DATE}) (?:stdout|stderr) [FP] ",
        rf"\[?(?P<time>{_DATE}|{_SYSLOG})\]? +(?P<host>[\w.-]{{1,253}}) [\w./@-]{{1,64}}\[(?P<pid>\d{{1,9}})\]: ?",
        rf"\[?(?P<time>{_DATE})\]?:? +",
        r"(?P<time>[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4})(?![\w.])",
        r"\[(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)\]",
        r"\[rank(?P<rank>\d{1,7})\]: ?",
        r"rank ?(?P<rank>\d{1,7}): ",
        r"\[(?:default|trainer|worker)\d{1,6}\]: ?",
        r"(?P<rank>\d{1,7}): ",
        r" {1,6}(?P<rank>\d{1,7}): ",
        r"\[(?P<rank>\d{1,7})\] (?=\S)",
        r"\([\w.:<>-]{1,64} pid=(?P<pid>\d{1,9})(?:, ip=(?P<host>[\w.:-]{1,253}))?\) ?",
        r"(?P<host>[a-z][\w.-]{0,127}-\d{1,4}) {1,64}\| (?=[^|])",
        r"(?:> ?){1,8}",
        r"\(raylet(?:, ip=(?P<host>[\w.:-]{1,253}))?\) ?",
        r"\[pod/(?P<host>[\w.-]{1,253})/[\w.-]{1,253}\] ",
        r"(?P<host>[a-z][a-z.-]{0,200}\d[a-z\d.-]{0,50}): (?= {0,40}\S)",
    )
)
_MOST_PREFIXES = 8


class Line(NamedTuple):
    """The `text` of a line, and what its prefixes say: rank of the job, host, process (-1, empty: nothing), and time.

    `at` is the time as it is written.
    """

    text: str
    rank: int = -1
    host: str = ""
    pid: int = -1
    at: str = ""


def plain(written: str) -> Line:
    """A line without colours and prefixes. The innermost prefix is the surest, as it is the program's own."""
    text = _ESCAPES.sub("", written[:LONGEST_LINE])
    found: dict[str, str] = {}
    if tag := _MPI.search(text):
        found["rank"] = tag[2]
        text = _MPI.sub("", text)
    for _ in range(_MOST_PREFIXES):
        match = next((match for form in _PREFIXES if (match := form.match(text))), None)
        if match is None:
            break
        found |= {name: value for name, value in match.groupdict().items() if value}
        text = text[match.end() :]
    rank, pid = int(found.get("rank", -1)), int(found.get("pid", -1))
    return Line(text, rank, found.get("host", ""), pid, found.get("time", ""))


def bare(written: str) -> str:
    """The text of a line without colours and prefixes."""
    return plain(written).text


_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_CLOCK = r"(\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?"
_NUMBERED = re.compile(rf"(?:\d{{4}}-)?(\d{{1,2}})-(\d\d)[T _]{_CLOCK}")
_NAMED = re.compile(rf"([A-Z][a-z]{{2}}) ([ \d]\d) {_CLOCK}")
_DAYS = (0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334)


def moment_s(at: str) -> float:
    """Seconds from the beginning of the year, as most logs write no year and no zone; -1 for what is no such time."""
    if match := _NUMBERED.search(at):
        month = int(match[1])
    elif match := _NAMED.search(at):
        month = 1 + _MONTHS.index(match[1]) if match[1] in _MONTHS else 0
    if match is None or not 1 <= month <= len(_DAYS):
        return -1.0
    days = _DAYS[month - 1] + int(match[2]) - 1
    fraction = float(f"0.{match[6]}") if match[6] else 0.0
    return ((days * 24 + int(match[3])) * 60 + int(match[4])) * 60 + int(match[5]) + fraction
