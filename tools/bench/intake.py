"""What the master takes for telemetry over TLS, by the number of hosts: processor time by stage, lag and memory.

The master and the agents that replay windows to it are processes of their own. With a `baseline` checkout its master
and agents are measured in turn with these; the windows of both are those of one simulated job.
"""

import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from c4bench.bench.figures import note
from c4bench.deploy import authority
from c4bench.errors import UnhealthyError
from c4bench.model.measurement import Clock
from c4bench.record import RunDirectory
from c4bench.report.statistics import median, percentile
from tools.bench import intake_master
from tools.bench.agents import free_port
from tools.bench.intake_load import RANKS_PER_HOST, WINDOW_S, host_names
from tools.bench.intake_master import Reading

_HOSTS = {False: (5, 10, 20, 40), True: (5, 10)}  # by: is it the quick form?
_WARM_UP_S = {False: 4.0, True: 2.0}
_SECONDS = {False: 10.0, True: 4.0}
_AGENTS_PER_PROCESS = 10
# Until the first window; agents and master read the same clock.
_BEGIN_AFTER_S = 0.5
_WINDOW_AT_MOST_S, _EXPONENT_AT_MOST = 1e-4, 1.1
_LAG_AT_MOST_S, _BYTES_AT_MOST = 0.5, 2e6
# At this share of a core and below, the limit of the lag applies.
_LOAD = 0.8
_THIS, _BASELINE = "this", "baseline"
# Each checkout writes windows as its master reads them.
_REPLAYS = """
import sys
from pathlib import Path
from tools.bench.intake_load import write_replays
print(write_replays(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
"""


class Point(NamedTuple):
    """A reading with so many hosts."""

    hosts: int
    reading: Reading

    @property
    def window_s(self) -> float:
        """Processor seconds for a window."""
        return self.reading.cpu_s / max(1, self.reading.windows)


def measure(run: RunDirectory, *, quick: bool, baseline: Path | None = None) -> None:
    """Measure by the number of hosts. Raises UnhealthyError when the master or an agent fails."""
    codes = {_BASELINE: baseline, _THIS: None} if baseline else {_THIS: None}
    points: dict[str, list[Point]] = {code: [] for code in codes}
    for hosts in _HOSTS[quick]:
        with tempfile.TemporaryDirectory(prefix="c4bench-intake-") as name:
            for code, checkout in codes.items():
                folder = Path(name) / code
                authority.establish(folder, host_names(hosts), datetime.now(UTC) - timedelta(days=1))
                size_bytes = _write_replays(folder, hosts, _WARM_UP_S[quick] + _SECONDS[quick], checkout)
                point = Point(hosts, _reading(folder, hosts, checkout, _WARM_UP_S[quick], _SECONDS[quick]))
                points[code].append(point)
                _note_point(run, point, code, size_bytes)
        if baseline:
            ratio = points[_BASELINE][-1].window_s / points[_THIS][-1].window_s
            note(run, "intake", "intake.speedup", ratio, clock=Clock.MACHINE, hosts=hosts)
    for code, measured in points.items():
        _note_growth(run, measured, code)


def _note_point(run: RunDirectory, point: Point, code: str, size_bytes: int) -> None:
    reading, ours = point.reading, code == _THIS
    write = partial(note, run, "intake", clock=Clock.MACHINE)
    for stage, share in reading.shares.items():
        write("intake.window_s", share * point.window_s, unit="s", stage=stage, hosts=point.hosts, code=code)
    at_most = _WINDOW_AT_MOST_S if ours else None
    sent: dict[str, Any] = {"bytes": size_bytes, "windows": reading.windows}
    write("intake.window_s", point.window_s, unit="s", at_most=at_most, hosts=point.hosts, code=code, **sent)
    load = round(reading.cpu_s / reading.seconds, 3)
    at_most = _LAG_AT_MOST_S if ours and load <= _LOAD else None
    write("intake.lag_s", median(reading.lag_s), unit="s", percent=50, load=load, hosts=point.hosts, code=code)
    lag_s = percentile(reading.lag_s, 99)
    write("intake.lag_s", lag_s, unit="s", at_most=at_most, percent=99, load=load, hosts=point.hosts, code=code)
    at_most = 0 if ours else None
    write("intake.false_missing", reading.missing, at_most=at_most, hosts=point.hosts, code=code)


def _note_growth(run: RunDirectory, points: Sequence[Point], code: str) -> None:
    ours = code == _THIS
    # At the largest number of hosts, because the cost of a window may depend on it.
    hosts = WINDOW_S / points[-1].window_s
    note(run, "intake", "intake.hosts_per_core", hosts, clock=Clock.MACHINE, code=code, ranks=RANKS_PER_HOST)
    at_most = _EXPONENT_AT_MOST if ours else None
    note(run, "intake", "intake.exponent", exponent(points), clock=Clock.MACHINE, at_most=at_most, code=code)
    bytes_each = rss_per_host_bytes(points)
    at_most = _BYTES_AT_MOST if ours else None
    note(
        run,
        "intake",
        "intake.rss_per_host_bytes",
        bytes_each,
        unit="B",
        clock=Clock.MACHINE,
        at_most=at_most,
        code=code,
    )


def exponent(points: Sequence[Point]) -> float:
    """The slope of log processor time for one window of every host over log hosts."""
    logs = [(math.log(point.hosts), math.log(point.hosts * point.window_s)) for point in points]
    return statistics.linear_regression(*zip(*logs, strict=True)).slope


def rss_per_host_bytes(points: Sequence[Point]) -> float:
    """The slope of resident memory over hosts."""
    return statistics.linear_regression(
        [point.hosts for point in points], [point.reading.resident_bytes for point in points]
    ).slope


def _write_replays(folder: Path, hosts: int, seconds: float, checkout: Path | None) -> int:
    """Have `checkout`, or this one, write its replays; return the mean size of a window in bytes."""
    arguments = [str(folder), str(hosts), str(seconds)]
    with _program([sys.executable, "-P", "-c", _REPLAYS, *arguments], checkout) as program:
        assert program.stdout
        return int(program.stdout.readline())


def _reading(folder: Path, hosts: int, checkout: Path | None, warm_up_s: float, seconds: float) -> Reading:
    """Run a master and agents from `checkout`, or from this one."""
    port = free_port()
    names = host_names(hosts)
    with ExitStack() as stack:
        state = stack.enter_context(tempfile.TemporaryDirectory(dir=folder))
        for file in folder.glob("*.*"):
            (Path(state) / file.name).symlink_to(file)
        master = [sys.executable, "-P", intake_master.__file__, state, str(port), str(warm_up_s), str(seconds)]
        serving = stack.enter_context(_program(master, checkout))
        _expect(serving, "ready")
        agents = [
            stack.enter_context(
                _program(
                    [
                        sys.executable,
                        "-P",
                        "-m",
                        "tools.bench.intake_agents",
                        str(folder),
                        str(port),
                        str(hosts),
                        *some,
                    ],
                    checkout,
                )
            )
            for some in (names[first : first + _AGENTS_PER_PROCESS] for first in range(0, hosts, _AGENTS_PER_PROCESS))
        ]
        for agent in agents:
            _expect(agent, "connected")
        begin_s = time.time() + _BEGIN_AFTER_S
        for program in (*agents, serving):
            assert program.stdin
            program.stdin.write(f"{begin_s}\n")
            program.stdin.flush()
        assert serving.stdout
        answer = serving.stdout.readline()
        if not answer:
            raise UnhealthyError("the measured master ended early; its messages are above")
        return msgspec.json.decode(answer, type=Reading)


@contextmanager
def _program(command: Sequence[str], checkout: Path | None = None) -> Iterator[subprocess.Popen[str]]:
    """A program that is ended at the end, with the modules of `checkout` if there is one."""
    environment = os.environ | ({"PYTHONPATH": str(checkout.resolve())} if checkout else {})
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment) as program:
        try:
            yield program
        finally:
            program.terminate()


def _expect(program: subprocess.Popen[str], line: str) -> None:
    assert program.stdout
    said = program.stdout.readline().strip()
    if said != line:
        raise UnhealthyError(f"{program.args!s:.80}: {line!r} was expected, and it says {said!r}; see above")
