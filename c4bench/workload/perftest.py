"""The same transfer by c4bench and by perftest's `ib_write_bw` alternately, over the same two devices."""

import os
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path

import msgspec

from c4bench.errors import UnhealthyError
from c4bench.evidence.printed import figures
from c4bench.workload.context import RankContext
from c4bench.workload.link import LinkEnd

OURS, THEIRS = "ours", "ib_write_bw"
_PORT = 18515
_LISTENING = "0A"  # TCP_LISTEN in /proc/net/tcp
_TIMEOUT_S = 30.0
_ATTEMPTS = 10


class Way(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a transfer is made: by the `program` OURS or THEIRS, with these variables set besides."""

    program: str
    environment: dict[str, str] = {}


class Perftest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """After a warm-up round, `rounds` rounds of `messages` of `size_bytes` each way, `window` in flight, on one QP."""

    ways: tuple[Way, ...]
    size_bytes: int
    messages: int
    rounds: int
    window: int = 16
    completions: str = "polling"  # as perftest does


def run(context: RankContext) -> None:
    """Report `perftest` from both ranks; rank 0's `rounds` have the bit/s of each way.

    If perftest is not installed, `missing` says so. The order alternates, so that drift of the machine favours none.
    """
    parameters = context.parameters(Perftest)
    if shutil.which(THEIRS) is None:
        context.report("perftest", missing=f"no {THEIRS} here (apt-get install perftest)", rounds=[])
        return
    with LinkEnd(context, parameters.size_bytes, parameters.window, "patient", parameters.completions) as link_end:
        ends = [_end(context, parameters, link_end, number) for number in range(len(parameters.ways))]
        rounds = [_round(ends, link_end, number) for number in range(parameters.rounds + 1)]
    context.report("perftest", missing="", rounds=rounds[1:])


def _end(context: RankContext, parameters: Perftest, link_end: LinkEnd, number: int) -> "_Own | _Rival":
    """Make the end of a way, by its number, that this rank has."""
    way = parameters.ways[number]
    if way.program == OURS:
        return _Own(context.rank, parameters, link_end)
    return _Rival(context, parameters, link_end, way, str(number))


def _round(ends: Sequence["_Own | _Rival"], link_end: LinkEnd, number: int) -> list[float]:
    """The figures of one round, by the order of the ways."""
    found = [0.0] * len(ends)
    for place in range(len(ends))[:: 1 if number % 2 else -1]:
        found[place] = ends[place].run()
        link_end.exchange(f"round/{number}/{place}")
    return found


class _Own:
    """c4bench's own transfer between the two ranks."""

    def __init__(self, rank: int, parameters: Perftest, link_end: LinkEnd) -> None:
        self._rank, self._parameters, self._link_end = rank, parameters, link_end

    def run(self) -> float:
        """Run one transfer; returns its bit/s, 0 on the receiving rank."""
        if self._rank:
            return 0.0
        size_bytes, messages = self._parameters.size_bytes, self._parameters.messages
        began, ended = self._link_end.send(size_bytes, messages)
        return size_bytes * messages * 8 / (ended - began)


class _Rival:
    """perftest between the two ranks: a server on rank 1, a client on rank 0."""

    def __init__(self, context: RankContext, parameters: Perftest, link_end: LinkEnd, way: Way, name: str) -> None:
        self._link_end, self._rank = link_end, context.rank
        self._parameters, self._environment, self._name = parameters, way.environment, name
        self._server = context.job.members[1].host
        self._runs = count()

    def run(self) -> float:
        """Run one transfer; returns its average bit/s.

        perftest measures the processor's tick rate after each run, and gives no result if the machine was too busy for
        that; then it is run again. Raises UnhealthyError if it never succeeds.
        """
        for _ in range(_ATTEMPTS):
            number = next(self._runs)
            output = self._client(number) if self._rank == 0 else self._serve(number)
            found = str(average_bps(output, self._parameters.size_bytes)).encode()
            results = self._link_end.exchange(f"{self._name}/ended/{number}", found)
            if rate := float(results[0]):
                return rate
        raise UnhealthyError(f"{THEIRS} gave no result {_ATTEMPTS} times: {' '.join(output.split()[-30:])}")

    def _client(self, number: int) -> str:
        self._link_end.exchange(f"{self._name}/serving/{number}")
        return _finish(_start([*self._command(), self._server], self._environment))

    def _serve(self, number: int) -> str:
        server = _start(self._command(), self._environment)
        _wait_until_serving(server)
        self._link_end.exchange(f"{self._name}/serving/{number}")
        return _finish(server)

    def _command(self) -> list[str]:
        device, parameters = self._link_end.device, self._parameters
        flags = {
            "--ib-dev": device.name,
            "--gid-index": device.resolve_gid().table_index,
            "--mtu": device.status().active_mtu_bytes,
            "--size": parameters.size_bytes,
            "--iters": parameters.messages,
            "--tx-depth": parameters.window,
            "--qp": 1,
            "--port": _PORT,
            "--tclass": device.nic.traffic_class,
            "--sl": device.nic.service_level,
        }
        options = [f"{name}={value}" for name, value in flags.items()]
        return [THEIRS, *options, "--CPU-freq", "--report_gbits"]


def _start(command: Sequence[str], environment: Mapping[str, str]) -> "subprocess.Popen[str]":
    own = os.environ | environment
    return subprocess.Popen(command, env=own, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def _finish(process: "subprocess.Popen[str]") -> str:
    """The output of a process. Raises UnhealthyError if it fails or does not end."""
    try:
        output, _ = process.communicate(timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        output = f"no end after {_TIMEOUT_S:g} s"
    if process.returncode:
        raise UnhealthyError(f"{THEIRS} failed on {os.uname().nodename}: {' '.join(output.split()[-30:])}")
    return output


def _wait_until_serving(server: "subprocess.Popen[str]") -> None:
    deadline = time.monotonic() + _TIMEOUT_S
    while not any(serving(Path(table).read_text(), _PORT) for table in ("/proc/net/tcp", "/proc/net/tcp6")):
        if server.poll() is not None:
            _finish(server)
        if time.monotonic() > deadline:
            server.kill()
            raise UnhealthyError(f"{THEIRS} does not listen on port {_PORT} after {_TIMEOUT_S:g} s")
        time.sleep(0.02)


def serving(table: str, port: int) -> bool:
    """Whether a process listens on a TCP port, from the text of /proc/net/tcp."""
    rows = (link_end.split() for link_end in table.splitlines()[1:])
    return any(row[1].endswith(f":{port:04X}") and row[3] == _LISTENING for row in rows)


def average_bps(output: str, size_bytes: int) -> float:
    """The average rate that perftest's output has for messages of that size, bit/s; 0 if there is none."""
    return next((found.value for found in figures(output) if found.size_bytes == size_bytes), 0.0)
