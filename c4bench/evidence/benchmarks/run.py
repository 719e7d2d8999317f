"""A run of a benchmark while its lines are read, and numbers out of them. Figures are in bit/s and seconds."""

import math
import re
from dataclasses import dataclass, field

from c4bench.evidence.limits import short_name
from c4bench.model.evidence import BenchmarkRow, BenchmarkRun

NCCL_TESTS, RCCL_TESTS, PERFTEST, OSU, UCX = "nccl-tests", "rccl-tests", "perftest", "osu", "ucx_perftest"
MEBI, MEGA, GIGA = float(1 << 20), 1e6, 1e9
MICRO = 1e-6
# A line whose first two words are whole numbers: in most tables a size and a count.
FIGURES = re.compile(r"^\s*\d{1,18}\s+\d+(?:\s|$)")
_MOST_ERRORS = 4
_LARGEST = 1e18


@dataclass
class Run:
    """What has been read of a run. `began` with its title, it has `ended` with what the tool prints last.

    `row` is the first word of a row that is cut short, `wanted` the largest size that was to be measured.
    """

    tool: str
    kind: str = ""
    version: str = ""
    rows: list[BenchmarkRow] = field(default_factory=list)
    ranks: int = 0
    hosts: dict[str, None] = field(default_factory=dict)
    failed: int = -1
    mean_bps: float = -1.0
    errors: dict[str, None] = field(default_factory=dict)
    nic: str = ""
    connections: int = 0
    ends: dict[str, str] = field(default_factory=dict)
    serves: bool = False
    began: bool = False
    ended: bool = False
    row: str = ""
    wanted: int = 0

    def error(self, line: str) -> None:
        """Keep a line in which the tool says why it does not go on."""
        if len(self.errors) < _MOST_ERRORS:
            self.errors[short_name(line.strip())] = None

    def cut(self, end: str) -> str:
        """What is missing of a run that has not ended; it ends with `end`."""
        if self.ended:
            return f"the row of {self.row} bytes cannot be read" if self.row else ""
        if not self.rows and not self.row:
            return "it measured no size: it hung or failed in the first, or the text is cut"
        last = self.row or str(self.rows[-1].size_bytes)
        where = f"{'in' if self.row else 'after'} the row of {last} bytes"
        wanted = f"; it was to go on to {self.wanted} bytes" if self.wanted > known(last) else ""
        return f"it ends {where}, before {end}{wanted}: it did not finish, or the text is cut"

    def done(self, file: str, cut: str) -> BenchmarkRun:
        """The run; `cut` says what is missing of it."""
        return BenchmarkRun(
            file,
            self.tool,
            self.kind,
            tuple(self.rows),
            version=self.version,
            ranks=self.ranks,
            hosts=tuple(self.hosts),
            failed=self.failed,
            mean_bps=self.mean_bps,
            cut=cut,
            errors=tuple(self.errors),
            nic=self.nic,
            connections=self.connections,
            local=self.ends.get("local", ""),
            remote=self.ends.get("remote", ""),
            serves=self.serves,
        )


def known(value: object, scale: float = 1.0) -> float:
    """A number that is printed, or in JSON is a number or text, times `scale`; -1 for none and for a negative one."""
    try:
        number = float(str(value).replace(",", "")) * scale
    except ValueError:
        return -1.0
    return number if 0 <= number < _LARGEST else -1.0


def size(value: object) -> int:
    """A size in bytes; -1 for anything else."""
    number = known(value)
    return int(number) if math.isfinite(number) else -1
