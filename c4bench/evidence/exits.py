"""How processes ended, as they and their launchers say it: srun, mpirun, torchrun, Kubernetes, tracebacks.

Source: Slurm's `srun` and `slurmstepd`, Open MPI 3 to 5 (`mpirun`, `prterun`), Hydra of MPICH and Intel MPI,
`torch.distributed.elastic`, and states of containers. Ranks here are those of the job (tasks of srun, processes of
mpirun). Processes that were ended by their launcher (SIGTERM), or that an error of NCCL or of a store ended, follow
from something else.
"""

import re
import signal
from collections.abc import Iterator

from msgspec.structs import replace

from c4bench.budget import Account
from c4bench.evidence.limits import MOST_RANKS, short_name, short_words
from c4bench.evidence.lines import Line
from c4bench.evidence.watchdog import written_at
from c4bench.model.evidence import LogEvent

NEEDLES = (
    b"noticed that process rank ", b"failed (exitcode: ",
    b"Process name: ", b"Exit code: ", b"srun: error: ", b"slurmstepd: error: ", b"emote daemon",
    b"host      : ", b"rank      : ", b"exitcode  : ", b"Root Cause (first", b"OOMKilled", b"aught signal ",
    b"] Signal: ", b"Error: ", b"Test NCCL failure ", b" RUNNING AT ", b"EXIT CODE: ", b"KILLED BY SIGNAL: ",
    b"MPI_ABORT was ", b" MPI_Abort(", b" failed to pass monitoredBarrier",
)  # fmt: skip
_BY_SIGNAL = re.compile(
    r"noticed that process rank (\d{1,7}) with PID (\d{1,9}) on node (\S{1,253}) exited on signal (\d{1,3})"
)
_MPI_NAME = re.compile(r"^\s*Process name: \[.{1,128}[,@]\d{1,9}\]?,(\d{1,7})\]")
_MPI_CODE = re.compile(r"^\s*Exit code:\s+(\d{1,3})\s*$")
_HYDRA_NAME = re.compile(r"^=\s+(?:RANK (\d{1,7}) )?PID (\d{1,9}) RUNNING AT (\S{1,253})")
_HYDRA_CODE = re.compile(r"^=\s+(?:EXIT CODE: (\d{1,3})\b|KILLED BY SIGNAL: (\d{1,3})\b)")
_SRUN = re.compile(r"srun: error: (\S{1,253}): tasks? ([\d,\[\]-]{1,512}): (.{1,80})")
_NODE = re.compile(r"srun: error: Node failure on (\S{1,253})")
_STEP = re.compile(r"slurmstepd(?:-\S{1,64})?: error: (?:.{0,120}?\bON (\S{1,253}) )?(.{0,200})")
_DAEMON = re.compile(r"[Rr]emote daemon:? .{0,128} on node (\S{1,253})")
_ENTRY = re.compile(r"^\s*(time|host|rank|exitcode) {1,6}: (\S{1,253})(?:.*\(pid: (\d{1,9})\))?")
_AGENT = re.compile(r"failed \(exitcode: (-?\d{1,3})\) local_rank: (\d{1,6}) \(pid: (\d{1,9})\)")
_ABORT = re.compile(
    r"MPI_ABORT was invoked on rank (\d{1,7}) in communicator MPI_COMM_WORLD"
    r"|application called MPI_Abort\(MPI_COMM_WORLD, -?\d{1,9}\) - process (\d{1,7})"
)
_CONTAINER = re.compile(r"^\s*(?:(\S{1,253})\s+\d{1,4}/\d{1,4}\s+|Reason:\s+)(OOMKilled)\b")
_CAUGHT = re.compile(
    r"\[([\w.-]{1,253}):(\d{1,9})\s{0,8}(?::\d{1,9}){0,2}\s*\] "
    r"(?:Caught signal|Signal:) ?(?:(\d{1,3}) |.{0,60}?\((\d{1,3})\))"
)
_EXCEPTION = re.compile(r"^(?:[A-Za-z_]\w{0,63}\.){0,8}([A-Z]\w{0,63}(?:Error|Exception|Interrupt)): (.{0,300})")
_TEST_FAILURE = re.compile(r"Test NCCL failure \S{1,80} '(.{0,300}?) ?/? ?'")
_FOLLOWS = re.compile(
    r"DistBackendError|DistStoreError|DistNetworkError|ChildFailed|SignalException|Rendezvous|BrokenPipe"
    r"|ConnectionReset|KeyboardInterrupt"
)
_FOLLOWS_TEXT = re.compile(
    r"NCCL (?:error|communicator was aborted)|nccl(?:Remote|System)Error|Connection (?:reset|closed)|Broken pipe"
    r"|[Ww]atchdog|remote process exited|network error|unhandled system error|remote error"
    r"|[Tt]imed out (?:waiting|after)|[Ss]ocket [Tt]imeout"
)
_BARRIER = re.compile(r"\bRanks? ([\d, ]{1,4096}) failed to pass monitoredBarrier in (\d{1,12}) ms")
_WORDS = {"Killed": -9, "Segmentation": -11, "Out Of Memory": -9, "Bus error": -7, "Aborted": -6, "Terminated": -15}
_ENDED_BY_OTHERS = frozenset({-signal.SIGTERM, -signal.SIGINT, -signal.SIGABRT, 128 + signal.SIGTERM})


class Exits:
    """What the lines of one file tell."""

    def __init__(self, file: str, account: Account) -> None:
        self._file, self._account = file, account
        self._entries: dict[tuple[int, str, int], dict[str, str]] = {}
        self.events: list[LogEvent] = []

    def read(self, line: Line, number: int) -> bool:
        """Read line `number`; False if it is none of these. Raises OverBudgetError."""
        before = len(self.events)
        if self._read_entry(line, number):
            return True
        for event in [*self._by_launcher(line, number)] or self._by_itself(line, number):
            self._account.spend(records=1)
            self.events.append(event)
        return len(self.events) > before

    def _by_launcher(self, line: Line, number: int) -> Iterator[LogEvent]:
        """What launchers say of the ends of others."""
        text = line.text
        if found := _BY_SIGNAL.search(text):
            pid = int(found[2]) or -1
            yield self._exit(-int(found[4]), line._replace(rank=int(found[1]), host=found[3], pid=pid), number)
        elif found := _SRUN.search(text):
            status = _srun_status(found[3])
            tasks = _tasks(found[2])
            for rank, host in zip(tasks, _hosts(found[1], len(tasks)), strict=True):
                yield self._exit(status, line._replace(rank=rank, host=host), number, found[3])
        elif found := _ABORT.search(text):
            rank = int(found[1] or found[2])
            yield self._exit(1, line._replace(rank=rank), number, "it called MPI_Abort")
        elif found := _NODE.search(text) or _DAEMON.search(text):
            yield self._event("host", "its node has failed, as the launcher says", line._replace(host=found[1]), number)
        elif "slurmstepd" in text and (found := _STEP.search(text)):
            if "oom_kill" in found[2]:
                yield self._exit(-signal.SIGKILL, line, number, "killed, as the memory of its job or host was used up")
            elif "CANCELLED" in text:
                words = f"Slurm has ended the step{' on ' + found[1] if found[1] else ''}: {found[2]}"
                yield self._event("end", words, line._replace(host=found[1] or line.host), number, consequence=True)

    def _by_itself(self, line: Line, number: int) -> Iterator[LogEvent]:
        """What an agent says of a process of its own, or a process of itself."""
        text = line.text
        if found := _AGENT.search(text):
            status = int(found[1])
            words = f"its local rank {found[2]}, process {found[3]}, {_how(status)}"
            yield self._exit(status, line, number, words)
        elif found := _CONTAINER.search(text):
            host = found[1] or line.host
            yield self._exit(-signal.SIGKILL, line._replace(host=host), number, "OOMKilled: its memory was used up")
        elif found := _CAUGHT.search(text):
            yield self._exit(-int(found[3] or found[4]), line._replace(host=found[1], pid=int(found[2])), number)
        elif found := _TEST_FAILURE.search(text):
            follows = bool(_FOLLOWS_TEXT.search(found[1]))
            yield self._event("exception", f"nccl-tests: {found[1]}", line, number, consequence=follows)
        elif found := _BARRIER.search(text):
            waited = f"had not come to a barrier after {int(found[2]) / 1000:g} s"
            for rank in _tasks(found[1].replace(" ", "")):
                yield self._event("barrier", waited, Line("", rank, at=line.at), number)
        elif found := _EXCEPTION.search(text):
            follows = bool(_FOLLOWS.search(found[1]) or _FOLLOWS_TEXT.search(found[2]))
            yield self._event("exception", f"{found[1]}: {found[2]}", line, number, consequence=follows)

    def _read_entry(self, line: Line, number: int) -> bool:
        """Read a line of a table of processes that ended: who it was, in one line or more, and then the code."""
        label = line.rank, line.host, line.pid
        if who := _who(line.text):
            self._entries[label] = who
            return True
        code = _code(line.text)
        if code is not None and label in self._entries:
            self._add_entry(self._entries.pop(label), code, line, number)
            return True
        row = _ENTRY.search(line.text)
        if row is None:
            return False
        entry = self._entries.setdefault(label, {})
        entry[row[1]] = row[2]
        if row[1] == "exitcode":
            entry["pid"] = row[3] or "-1"
            if re.fullmatch(r"-?\d{1,3}", row[2]):
                self._add_entry(self._entries.pop(label), int(row[2]), line, number)
        return True

    def _add_entry(self, entry: dict[str, str], code: int, line: Line, number: int) -> None:
        self._account.spend(records=1)
        rank = entry.get("rank", "")
        of = line._replace(
            rank=int(rank) if rank.isdecimal() and len(rank) < 8 else -1, host=entry.get("host", line.host),
            pid=int(entry.get("pid", -1)), at=entry.get("time", line.at),
        )  # fmt: skip
        self.events.append(self._exit(code, of, number, root="root" in entry))

    def _exit(self, status: int, of: Line, number: int, words: str = "", *, root: bool = False) -> LogEvent:
        follows = status in _ENDED_BY_OTHERS or status == 0
        event = self._event("exit", words or _how(status), of, number, consequence=follows)
        return replace(event, status=status, root=root)

    def _event(self, what: str, words: str, of: Line, number: int, *, consequence: bool = False) -> LogEvent:
        rank = of.rank if of.rank < MOST_RANKS else -1
        host, at = short_name(of.host), of.at or written_at(of)
        return LogEvent(self._file, number, what, short_words(words), rank, host, of.pid, at, consequence)


def _who(text: str) -> dict[str, str]:
    """The process that a line of a table names, or its heading; nothing for any other line."""
    if "Root Cause (first" in text:
        return {"root": "yes"}
    if name := _MPI_NAME.search(text):
        return {"rank": name[1]}
    if name := _HYDRA_NAME.search(text):
        return {"rank": name[1] or "", "pid": name[2], "host": name[3]}
    return {}


def _code(text: str) -> int | None:
    """The exit code of a line of mpirun's or Hydra's table, less than 0 for a signal; None for any other line."""
    if code := _MPI_CODE.search(text) or _HYDRA_CODE.search(text):
        return int(code[1]) if code[1] else -int(code[2])
    return None


def _how(status: int) -> str:
    """How a process ended, in words."""
    by_signal = -status if status < 0 else max(0, status - 128)
    named = f"signal {by_signal} ({_signal_name(by_signal)})" if by_signal else ""
    return f"ended by {named}" if status < 0 else f"exit code {status}{f', {named}' if named else ''}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"


def _srun_status(words: str) -> int:
    """The exit code that srun prints, or less than 0 for the signal that its words mean."""
    if code := re.search(r"[Ee]xited with exit code (\d{1,3})", words):
        return int(code[1])
    return next((status for word, status in _WORDS.items() if word in words), 1)


def _hosts(listed: str, tasks: int) -> list[str]:
    """The host of each of so many tasks, by a name such as `gpu[3,8-9]`; empty where that does not say which."""
    before, _, within = listed.partition("[")
    if not within:
        return [listed] * tasks
    numbers, width = _tasks(within), len(re.split(r"[],-]", within)[0])
    return [f"{before}{number:0{width}}" for number in numbers] if len(numbers) == tasks else [""] * tasks


def _tasks(listed: str) -> list[int]:
    """The tasks in a list such as `3,8-15`, as many as a job may have."""
    found: list[int] = []
    for part in listed.strip("[]").split(","):
        first, _, last = part.partition("-")
        if first.isdecimal() and (last.isdecimal() or not last) and len(first) < 8 and len(last) < 8:
            found += range(int(first), min(int(last or first) + 1, MOST_RANKS))
        if len(found) > MOST_RANKS:
            break
    return found
