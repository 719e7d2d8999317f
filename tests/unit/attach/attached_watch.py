"""The telemetry of a folder's attached processes, as agents would send it: a host for each rank."""

import time
from collections.abc import Callable
from pathlib import Path

from c4bench.agent.attached import renamed
from c4bench.c4d.offline import detect
from c4bench.collective.ring_layout import Owner
from c4bench.collective.ring_reader import TelemetryReader, read_owner
from c4bench.control.jobs.attached_names import AttachedNames, Seat
from c4bench.model.diagnosis import Diagnosis
from c4bench.model.telemetry import RankRecord
from c4bench.model.window import Numbering, Window

CADENCE_S = 0.1


class Watch:
    """Rank R is on host `hR`. `windows` is the recording, `partial` each host's latest as it is read."""

    def __init__(self, folder: Path, size: int) -> None:
        self.folder = folder
        self.windows: list[Window] = []
        self.partial: dict[str, Window] = {}
        self.rings: dict[int, Path] = {}
        self.names = AttachedNames()
        self._hosts = [(f"h{rank}", Numbering()) for rank in range(size)]
        self._readers: dict[int, TelemetryReader] = {}
        self._owners: dict[int, Owner] = {}
        self._tick, self._last_s = 0, time.time()

    def watch(self, seconds: float) -> None:
        """Record so much."""
        for _ in range(round(seconds / CADENCE_S)):
            time.sleep(max(0.0, self._last_s + CADENCE_S - time.time()))
            start_s, self._last_s = self._last_s, time.time()
            self._find()
            self.windows += [self._window(rank, start_s, self._last_s) for rank in range(len(self._hosts))]
            self._tick += 1

    def until_entered(self, number: int, patience_s: float = 60.0) -> None:
        """Record until a rank has entered this operation."""
        end_s = time.time() + patience_s
        while not any(op.seq >= number for window in self.windows[-len(self._hosts) :] for op in window.ops):
            assert time.time() < end_s
            self.watch(CADENCE_S)

    def diagnoses(self) -> list[Diagnosis]:
        """What C4D says of the recording."""
        return detect(self.windows)

    def until(self, says: Callable[[Diagnosis], bool], patience_s: float = 60.0) -> Diagnosis:
        """Record until C4D says this last, or patience ends; returns what it has said last."""
        end_s = time.time() + patience_s
        while not (diagnoses := self.diagnoses()) or not says(diagnoses[-1]):
            assert time.time() < end_s, diagnoses
            self.watch(0.5)
        return diagnoses[-1]

    def _find(self) -> None:
        for path in set(self.folder.glob("*.ring")) - set(self.rings.values()):
            with path.open("rb") as file:
                owner = read_owner(path, file.fileno())
            self.rings[owner.rank] = path
            self._owners[owner.rank] = owner
            host, numbering = self._hosts[owner.rank]
            rename = renamed(owner.job, owner.rank, host)
            self._readers[owner.rank] = TelemetryReader(path, numbering, rename=rename)
            self.names.place(host, {}, [Seat(owner.job, owner.rank)])

    def _window(self, rank: int, start_s: float, end_s: float) -> Window:
        host, numbering = self._hosts[rank]
        tables = self._readers[rank].read(start_s) if rank in self._readers else ((b"",) * 4)
        owner = self._owners.get(rank)
        process = (RankRecord(owner.job, rank, host, owner.pid, _state(owner.pid)),) if owner else ()
        self.partial[host] = Window(host, self._tick, start_s, end_s, numbering.names, process, *tables)
        return self.names.translate(self.partial[host])


def _state(pid: int) -> str:
    """A process's state. Nobody but its parent knows how it has ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return "exited"
    return {"T": "stopped", "Z": "exited"}.get(state, "running")
