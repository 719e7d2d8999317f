"""What files of other tools tell of a job's collectives, whoever wrote them.

Nothing here need be known: numbers are -1, sizes 0 and text empty where a source does not tell.
"""

from enum import StrEnum

import msgspec

from c4bench.model.diagnosis import Cause, Component, Diagnosis

# The one format of other tools whose files have calls that have not ended.
FLIGHT_RECORDER = "flight recorder"
# Begins the names of groups of which a source knows no name, so that members with one name need not be in one group.
UNNAMED = "unnamed group"


class CallState(StrEnum):
    """How far a call has come.

    The first three are the words of PyTorch's flight recorder. `retired` has ended, well or by a time-out or an error.
    """

    SCHEDULED = "scheduled"
    STARTED = "started"
    COMPLETED = "completed"
    RETIRED = "retired"
    UNKNOWN = "unknown"


class Call(msgspec.Struct, frozen=True):
    """One collective, send or receive, as one rank saw it.

    `seq` counts the communicator's operations. `order` is the place among all calls of the rank, in all communicators.
    `size_bytes` is what the rank put in. `created_s` is when the rank called it and `finished_s` when it was seen to
    have ended, both on the clock of the rank's host; 0 if not known. `duration_s` is how long it took. `peer` is the
    other member of a send or receive, whose `seq` counts these alone; those in one batch have one number.
    """

    seq: int
    kind: str
    state: CallState
    order: int = -1
    dtype: str = ""
    size_bytes: int = -1
    created_s: float = 0.0
    duration_s: float = -1.0
    finished_s: float = 0.0
    peer: int = -1

    def shown_s(self) -> float:
        """When the rank called it, or else when it was seen to have ended; 0 if neither is known."""
        return self.created_s or self.finished_s


class MemberEvidence(msgspec.Struct, frozen=True):
    """What one source tells of one member of one communicator.

    `rank` is the rank in the job, `member` that in the communicator, `members` the job's ranks in it. Either `calls`
    or `counts` (calls made, by kind) is empty. `transfers` are sends and receives in the order of calls. `last_seq` is
    the newest collective that the member is known to have called, `completed_seq` the newest that is known to have
    ended well. `status` is empty, `unresponsive` or `dead`. `gpu` is its number on the host. `local`: the communicator
    is not that of all ranks, and the rank in the job is not stated.
    """

    source: str
    format: str
    comm: str
    rank: int = -1
    member: int = -1
    members: tuple[int, ...] = ()
    size: int = 0
    host: str = ""
    pid: int = -1
    calls: tuple[Call, ...] = ()
    transfers: tuple[Call, ...] = ()
    counts: tuple[tuple[str, int], ...] = ()
    last_seq: int = -1
    status: str = ""
    taken_s: float = 0.0
    gpu: int = -1
    local: bool = False
    completed_seq: int = -1


class TimedOut(msgspec.Struct, frozen=True):
    """A rank of the job that gave up waiting in an operation after `after_s`, as a log has it.

    `enqueued` and `completed` are the newest operations of the `group` that it has called and finished, -1 if unknown.
    `comm` names the group as all ranks do, empty where the log does not; `member` is the rank in it, `size` how many
    there are, 0 if unknown. `rank` is -1 where only the member is known. `at` is the time as it is written.
    """

    source: str
    rank: int
    seq: int
    kind: str
    after_s: float
    group: str = ""
    enqueued: int = -1
    completed: int = -1
    comm: str = ""
    member: int = -1
    size: int = 0
    host: str = ""
    pid: int = -1
    at: str = ""


class LogEvent(msgspec.Struct, frozen=True):
    """An error in line `line` of a log, as far as known with the rank, host, process and time (as written).

    `what` is a kind such as `timeout`, `exit`, `connection`, `port`, `exception`; `text` are the words. What follows
    from another error is a `consequence`. `status` is an exit code, less than 0 for a signal, 0 if it is none.
    """

    source: str
    line: int
    what: str
    text: str
    rank: int = -1
    host: str = ""
    pid: int = -1
    at: str = ""
    consequence: bool = False
    status: int = 0
    root: bool = False


class FailedConnection(msgspec.Struct, frozen=True):
    """A connection of NIC `nic` of `host` to `peer`, a host's name or address, that failed `times` times by `status`.

    `gid` and `peer_gid` are addresses of the NICs at its ends, empty where the log has none.
    """

    source: str
    host: str
    nic: str
    peer: str
    status: int
    gid: str = ""
    peer_gid: str = ""
    vendor: int = -1
    times: int = 1
    at: str = ""
    pid: int = -1


class CommStart(msgspec.Struct, frozen=True):
    """A communicator of `size` ranks as logs show its initialisation: who has begun it, and who has completed it."""

    comm: str
    size: int
    begun: tuple[int, ...] = ()
    completed: tuple[int, ...] = ()


class LogFacts(msgspec.Struct, frozen=True):
    """What a log tells beside time-outs.

    `names` are the names of hosts by address, `nics` those of NICs (`HOST/NAME`) by GID. `carried` are NICs
    with pairs of ranks, the first of which sends by them to the second. `spoke_on` are the ranks of which any line
    tells something, with their hosts where known, `progress` how far ranks had come in groups. `closed` are
    peers to which connections broke, each with the processes (`HOST:PID`) that say so.
    """

    source: str
    events: tuple[LogEvent, ...] = ()
    failed: tuple[FailedConnection, ...] = ()
    starts: tuple[CommStart, ...] = ()
    names: dict[str, str] = {}
    nics: dict[str, str] = {}
    carried: tuple[tuple[str, int, int], ...] = ()
    spoke_on: dict[int, str] = {}
    progress: tuple[MemberEvidence, ...] = ()
    closed: dict[str, tuple[str, ...]] = {}


class Problem(msgspec.Struct, frozen=True):
    """A file, or a part of one at `place`, that could not be used, and why."""

    file: str
    reason: str
    place: str = ""

    def __str__(self) -> str:
        """`FILE: PLACE: REASON`."""
        return ": ".join(part for part in (self.file, self.place, self.reason) if part)


class SourceFile(msgspec.Struct, frozen=True):
    """A file that was read: its format with its version, the ranks of the job it tells of, and what of it is `used`.

    Of several sources in one file, the first has the counts of all.
    """

    file: str
    format: str
    version: str
    ranks: tuple[int, ...]
    used: dict[str, int] = {}


class BenchmarkRow(msgspec.Struct, frozen=True):
    """What a benchmark measured of messages of one size (0: not said), `in_place` or not.

    `bandwidth_bps` is the bus bandwidth of a collective, and the rate of payload between two ends. The times are of an
    operation, or of a message one way: mean, most frequent, percentiles and longest. `wrong` elements differ from what
    they should be; -1 where that was not checked. `failed`: the benchmark says so, without a number.
    """

    size_bytes: int
    bandwidth_bps: float = -1.0
    mean_s: float = -1.0
    typical_s: float = -1.0
    p99_s: float = -1.0
    p999_s: float = -1.0
    longest_s: float = -1.0
    wrong: int = -1
    in_place: bool = False
    failed: bool = False


class BenchmarkRun(msgspec.Struct, frozen=True):
    """One run of a benchmark: the collective or test that it is, and a row for each size.

    `failed` is how many of its checks failed by its own count, and `mean_bps` the mean bandwidth that it printed; -1
    where it does not say. `cut` says what is missing of its output, and `errors` are its own words for why it ended.
    `nic` is its device, `local` and `remote` are the addresses of both ends, `connections` how many there were between
    them, 0 if unknown, and `serves`: it is the server's output.
    """

    source: str
    tool: str
    kind: str
    rows: tuple[BenchmarkRow, ...]
    version: str = ""
    ranks: int = 0
    hosts: tuple[str, ...] = ()
    failed: int = -1
    mean_bps: float = -1.0
    cut: str = ""
    errors: tuple[str, ...] = ()
    nic: str = ""
    local: str = ""
    remote: str = ""
    serves: bool = False
    connections: int = 0

    @property
    def wrong(self) -> int:
        """How many elements are known to be wrong; -1 where none was checked."""
        checked = [row.wrong for row in self.rows if row.wrong >= 0]
        return sum(checked) if checked else -1

    @property
    def is_wrong(self) -> bool:
        """Whether its results were not what they should be, whatever its speed."""
        return self.failed > 0 or self.wrong > 0 or any(row.failed for row in self.rows)


class Reading(msgspec.Struct, frozen=True):
    """What was read of some files; `cannot_tell` is what such files do not show.

    `ranks` is the size of the job and `per_host` how many processes each host has, 0 where no file states it. `shown`
    are figures that are of no single operation or rank, in words.
    """

    members: tuple[MemberEvidence, ...] = ()
    sources: tuple[SourceFile, ...] = ()
    problems: tuple[Problem, ...] = ()
    cannot_tell: tuple[str, ...] = ()
    ranks: int = 0
    benchmarks: tuple[BenchmarkRun, ...] = ()
    per_host: int = 0
    timeouts: tuple[TimedOut, ...] = ()
    logs: tuple[LogFacts, ...] = ()
    shown: tuple[str, ...] = ()


class EvidenceVerdict(msgspec.Struct, frozen=True):
    """A diagnosis with the ranks that it is about, in the job's numbers.

    `culprits` are to blame: all of them if `sure`, else it is one among them; if there are none, nobody is known to be.
    `never_came` did not call the operation that others wait in, `only_wait` wait for others, `no_file` left nothing
    that could be read. Where most ranks have called less than a few, `ahead` are the few and `behind` the others, and
    either may be right. `hosts` are those of the culprits, where known, and `drain` those that may be taken out of
    service (`model/advice.py`); `unadvised` says why it is none, and `told_by` what would tell more. `chain` leads from
    a waiting rank to the culprits. `torchfrtrace` and `ras` are the words that PyTorch's analyser and NCCL's RAS have
    for it, empty where they have none.
    """

    diagnosis: Diagnosis
    culprits: tuple[int, ...]
    sure: bool
    never_came: tuple[int, ...] = ()
    only_wait: tuple[int, ...] = ()
    no_file: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    chain: tuple[str, ...] = ()
    torchfrtrace: str = ""
    ras: str = ""
    ahead: tuple[int, ...] = ()
    behind: tuple[int, ...] = ()
    drain: tuple[str, ...] = ()
    unadvised: str = ""
    told_by: str = ""

    @property
    def key(self) -> tuple[Cause | None, Component, tuple[int, ...]]:
        """What tells it from other verdicts on the same job."""
        return self.diagnosis.cause, self.diagnosis.component, self.culprits

    @property
    def suspects(self) -> tuple[int, ...]:
        """All ranks that may be to blame."""
        return self.culprits or (*self.ahead, *self.behind)


class State(StrEnum):
    """What files show of a job: a fault; none, though they would show a hang of any rank; or too little to say either.

    Files that have finished operations only may show that there is no straggler, and no more. Benchmarks may show no
    more than what they measured.
    """

    FAULT = "fault"
    HEALTHY = "healthy"
    NO_STRAGGLER = "no_straggler"
    MEASURED = "measured"
    UNTOLD = "untold"


class Standing(msgspec.Struct, frozen=True):
    """Ranks that wait in one operation, by its communicator and sequence number, and for whom."""

    comm: str
    seq: int
    kind: str
    ranks: tuple[int, ...]
    waits_for: tuple[int, ...]


class Reached(msgspec.Struct, frozen=True):
    """The newest collective of a communicator that these ranks have called."""

    comm: str
    seq: int
    ranks: tuple[int, ...]


class HostClock(msgspec.Struct, frozen=True):
    """How far the clock of a host, or of a rank whose host is not known, is ahead of the first one's, give or take."""

    host: str
    offset_s: float
    error_s: float


class EvidenceReport(msgspec.Struct, frozen=True):
    """`c4bench detect --json` on files of other tools: what was read, the verdicts, and what could not be told.

    All times are on the first of `clocks`, where there are any. `reached` are the ranks by sequence number, of the
    communicators in which ranks wait. `ranks` is the size of the job if `size_stated`, else it is that or more.
    `state` is `untold`, for the reason in `untold_why`, if ranks are missing or it is not known how their calls ended.
    `timeline` are the first errors in logs, of each rank one, in the order of their times; `contents` says which
    finished operations the files hold.
    """

    ranks: int
    sources: tuple[SourceFile, ...]
    verdicts: tuple[EvidenceVerdict, ...]
    problems: tuple[Problem, ...]
    cannot_tell: tuple[str, ...]
    benchmarks: tuple[BenchmarkRun, ...] = ()
    standings: tuple[Standing, ...] = ()
    clocks: tuple[HostClock, ...] = ()
    reached: tuple[Reached, ...] = ()
    size_stated: bool = False
    state: State = State.UNTOLD
    untold_why: str = ""
    timeline: tuple[LogEvent, ...] = ()
    contents: tuple[str, ...] = ()
