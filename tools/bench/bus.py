"""How much telemetry one detector and two judge, from the same stream of a real nats-server.

The windows of several jobs are sent at their times before anything is measured. Then detectors judge all of them as
fast as they can, one and two in turn, each a process as a user starts it.
"""

import asyncio
import contextlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from c4bench.agent.window_message import WindowMessages
from c4bench.bench.figures import note
from c4bench.deploy import authority
from c4bench.errors import UnhealthyError
from c4bench.model.measurement import Clock
from c4bench.model.window import Window
from c4bench.record import RunDirectory
from c4bench.report.statistics import median
from c4bench.wire.trust import Role
from tools.bench.agents import free_port
from tools.bench.intake_load import GROUP, RANKS_PER_HOST, WINDOW_S, host_names, job_spec, windows

if TYPE_CHECKING:  # nats-py is an extra
    from c4bench.bus.connection import Bus

_JOBS = ("a", "b", "c", "d")
_SECONDS, _ROUNDS = {False: 20.0, True: 8.0}, {False: 3, True: 1}  # by: is it the quick form?
_SPEEDUP_AT_LEAST = 1.8
_READY_WITHIN_S, _JUDGED_WITHIN_S, _LOOK_S = 20.0, 300.0, 0.05
# Until every detector knows of every other.
_ACQUAINTED_S = 2.0


def measure(run: RunDirectory, *, quick: bool) -> None:
    """Measure. Raises UnhealthyError where nats-server is not installed or a detector fails."""
    with tempfile.TemporaryDirectory(prefix="c4bench-bus-") as name:
        folder = Path(name)
        authority.establish(folder / "trust", host_names(GROUP), datetime.now(UTC) - timedelta(days=1))
        with _server(folder) as address:
            took_s, sent = asyncio.run(_rounds(folder / "trust", address, _SECONDS[quick], _ROUNDS[quick]))
    for count, times_s in took_s.items():
        rate = sent / median(times_s)
        note(run, "bus", "bus.windows_per_s", rate, unit="1/s", clock=Clock.MACHINE, detectors=count, jobs=len(_JOBS))
    ratio = median([one / two for one, two in zip(took_s[1], took_s[2], strict=True)])
    labels: dict[str, Any] = {"detectors": 2, "rounds": len(took_s[1]), "ranks": RANKS_PER_HOST}
    note(run, "bus", "bus.speedup", ratio, clock=Clock.MACHINE, at_least=_SPEEDUP_AT_LEAST, **labels)


@contextlib.contextmanager
def _server(folder: Path) -> Iterator[str]:
    """A nats-server with a configuration of ours."""
    program = shutil.which("nats-server") or shutil.which("nats-server", path="/usr/sbin")
    if program is None:
        raise UnhealthyError("nats-server is not installed: apt-get install --no-install-recommends nats-server")
    port = free_port()
    words = [
        "bus",
        "config",
        f"--trust={folder / 'trust'}",
        f"--store={folder / 'store'}",
        f"--listen=127.0.0.1:{port}",
    ]
    configured = subprocess.run(_c4(*words), capture_output=True, check=True)
    (folder / "nats.json").write_bytes(configured.stdout)
    with (folder / "nats.log").open("wb") as log:
        server = subprocess.Popen([program, "--config", str(folder / "nats.json")], stdout=log, stderr=log)
    try:
        until_s = time.monotonic() + _READY_WITHIN_S
        while not _listens(port):
            if server.poll() is not None or time.monotonic() > until_s:
                raise UnhealthyError(f"nats-server does not serve: {(folder / 'nats.log').read_text()[-300:]!r}")
            time.sleep(_LOOK_S)
        yield f"nats://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def _c4(*words: str) -> list[str]:
    return [sys.executable, "-m", "c4bench.cli.main", *words]


async def _rounds(trust: Path, address: str, seconds: float, rounds: int) -> tuple[dict[int, list[float]], int]:
    """How long one detector and two take for all that is sent, round after round; and how many windows that is."""
    from c4bench.bus.connection import Bus, bus_tls, opened  # noqa: PLC0415  (nats-py, which is an extra)
    from c4bench.bus.server import StreamLimits, make_streams  # noqa: PLC0415
    from c4bench.bus.subjects import Subjects  # noqa: PLC0415

    took_s: dict[int, list[float]] = {1: [], 2: []}
    # Before there is a connection, whose pings nobody would answer meanwhile.
    simulated = {job: list(windows(GROUP, seconds, job)) for job in _JOBS}
    async with contextlib.AsyncExitStack() as buses:

        async def connected(name: str, role: Role) -> Bus:
            return await buses.enter_async_context(opened(Bus(address, bus_tls(trust, name), name, names, role)))

        names = Subjects("c4")
        bus = await connected(Role.BUS_MASTER, Role.BUS_MASTER)
        await make_streams(bus, StreamLimits(seconds=3600.0))
        agents = {host: await connected(host, Role.AGENT) for host in host_names(GROUP)}
        sent, newest_s = await _send(agents, simulated), time.time() - 2 * WINDOW_S
        for _ in range(rounds):
            for count, times_s in took_s.items():
                times_s.append(await _judged(bus, trust, count, newest_s))
    return took_s, sent


async def _send(agents: Mapping[str, "Bus"], simulated: Mapping[str, Sequence[tuple[Window, ...]]]) -> int:
    """Send the windows of all jobs at their times, each as its host's agent; return how many."""
    messages = {(job, host): WindowMessages() for job in simulated for host in host_names(GROUP)}
    began_s, sent = time.time(), 0
    for number in range(min(map(len, simulated.values()))):
        await asyncio.sleep(max(0.0, began_s + (number + 1) * WINDOW_S - time.time()))
        for job, ticks in simulated.items():
            for window in ticks[number]:
                encoder = messages[job, window.host]
                body = bytes(encoder.encode(window))
                names = ("change" if number else "begin") if encoder.named else ""
                bus = agents[window.host]
                await bus.client.publish(bus.subjects.window(job, window.host, names), body)
                sent += 1
    for bus in agents.values():
        await bus.client.flush()
    return sent


async def _judged(bus: "Bus", trust: Path, count: int, newest_s: float) -> float:
    """The seconds that `count` detectors take to judge all jobs up to `newest_s`, from when the jobs are listed."""
    from c4bench.bus.jobs import JobEntry  # noqa: PLC0415  (nats-py, which is an extra)
    from c4bench.bus.subjects import bucket_key, bucket_stream  # noqa: PLC0415

    names = bus.subjects
    for stream in (bucket_stream(names.leases), bucket_stream(names.jobs), names.findings, names.fabric):
        await bus.js.purge_stream(stream)
    async with _detectors(bus.address, trust, count):
        began_s = time.monotonic()
        for job in _JOBS:
            entry = msgspec.msgpack.encode(JobEntry(job_spec(GROUP, job), 1))
            await bus.publish(bucket_key(names.jobs, job), entry)
        await _until_judged(bus, newest_s)
        return time.monotonic() - began_s


@contextlib.asynccontextmanager
async def _detectors(address: str, trust: Path, count: int) -> AsyncIterator[None]:
    """`count` detectors that know each other and no job."""
    command = _c4("detector", f"--bus={address}", f"--trust={trust}", "--log-level=error")
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(count)]
    try:
        for detector in started:
            assert detector.stdout
            if not (await asyncio.to_thread(detector.stdout.readline)).startswith("connected"):
                raise UnhealthyError("a detector ended early; its messages are above")
        await asyncio.sleep(_ACQUAINTED_S)
        yield
    finally:
        for detector in started:
            detector.kill()
            detector.communicate()


async def _until_judged(bus: "Bus", newest_s: float) -> None:
    """Wait until each job is judged up to a time of the server. Raises UnhealthyError if that takes too long."""
    from c4bench.bus.detector import JOB  # noqa: PLC0415  (nats-py, which is an extra)
    from c4bench.bus.lease import Lease  # noqa: PLC0415

    left, until_s = set(_JOBS), time.monotonic() + _JUDGED_WITHIN_S
    while left:
        if time.monotonic() > until_s:
            raise UnhealthyError(f"jobs {', '.join(sorted(left))} are not judged after {_JUDGED_WITHIN_S:g} s")
        for job in tuple(left):
            held = await Lease(bus, f"{JOB}{job}").look()
            if held is not None and held.judged_s >= newest_s:
                left.remove(job)
        await asyncio.sleep(_LOOK_S)
