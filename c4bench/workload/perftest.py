"""The same transfer by c4bench and by perftest's `ib_write_bw` alternately, over the same two devices."""

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path

import msgspec

from c4bench.errors import UnhealthyError
from c4bench.evidence.printed import figures
from c4bench.workload.context import RankContext
from c4bench.workload.link import LinkEnd

PROGRAM = "ib_write_bw"
_PORT = 18515
_LISTENING = "0A"  # TCP_LISTEN in /proc/net/tcp
_TIMEOUT_S = 30.0
_ATTEMPTS = 10


class Perftest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """After a warm-up round, `rounds` rounds of `messages` of `size_bytes` by each, `window` in flight, on one QP."""

    size_bytes: int
    messages: int
    rounds: int
    window: int = 16
    completions: str = "polling"  # as perftest does


def run(context: RankContext) -> None:
    """Report `perftest` from both ranks; rank 0's `pairs` are (c4bench, perftest) of each round, in bit/s.

    If perftest is not installed, `missing` says so. The order alternates, so that drift of the machine favours neither.
    """
    parameters = context.parameters(Perftest)
    if shutil.which(PROGRAM) is None:
        context.report("perftest", missing=f"no {PROGRAM} here (apt-get install perftest)", pairs=[])
        return
    with LinkEnd(context, parameters.size_bytes, parameters.window, "patient", parameters.completions) as link_end:
        rival = _Rival(context, parameters, link_end)
        pairs = [
            _pair(link_end, rival, parameters, number, ours=context.rank == 0)
            for number in range(parameters.rounds + 1)
        ]
    context.report("perftest", missing="", pairs=pairs[1:])


def _pair(link_end: LinkEnd, rival: "_Rival", parameters: Perftest, number: int, *, ours: bool) -> tuple[float, float]:
    """One round: bit/s of c4bench (0 on the receiving rank) and of perftest."""

    def own() -> float:
        if not ours:
            return 0.0
        began, ended = link_end.send(parameters.size_bytes, parameters.messages)
        return parameters.size_bytes * parameters.messages * 8 / (ended - began)

    measures: dict[str, Callable[[], float]] = {"ours": own, "theirs": rival.run}
    rates = {}
    for name in sorted(measures, reverse=number % 2 == 0):
        rates[name] = measures[name]()
        link_end.exchange(f"{name}/{number}")
    return rates["ours"], rates["theirs"]


class _Rival:
    """perftest between the two ranks: a server on rank 1, a client on rank 0."""

    def __init__(self, context: RankContext, parameters: Perftest, link_end: LinkEnd) -> None:
        self._link_end, self._rank = link_end, context.rank
        self._parameters = parameters
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
            results = self._link_end.exchange(
                f"ended/{number}", str(average_bps(output, self._parameters.size_bytes)).encode()
            )
            if rate := float(results[0]):
                return rate
        raise UnhealthyError(f"{PROGRAM} gave no result {_ATTEMPTS} times: {' '.join(output.split()[-30:])}")

    def _client(self, number: int) -> str:
        self._link_end.exchange(f"serving/{number}")
        return _finish(_start([*self._command(), self._server]))

    def _serve(self, number: int) -> str:
        server = _start(self._command())
        _wait_until_serving(server)
        self._link_end.exchange(f"serving/{number}")
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
        return [PROGRAM, *options, "--CPU-freq", "--report_gbits"]


def _start(command: Sequence[str]) -> "subprocess.Popen[str]":
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def _finish(process: "subprocess.Popen[str]") -> str:
    """The output of a process. Raises UnhealthyError if it fails or does not end."""
    try:
        output, _ = process.communicate(timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        output = f"no end after {_TIMEOUT_S:g} s"
    if process.returncode:
        raise UnhealthyError(f"{PROGRAM} failed on {os.uname().nodename}: {' '.join(output.split()[-30:])}")
    return output


def _wait_until_serving(server: "subprocess.Popen[str]") -> None:
    deadline = time.monotonic() + _TIMEOUT_S
    while not any(serving(Path(table).read_text(), _PORT) for table in ("/proc/net/tcp", "/proc/net/tcp6")):
        if server.poll() is not None:
            _finish(server)
        if time.monotonic() > deadline:
            server.kill()
            raise UnhealthyError(f"{PROGRAM} does not listen on port {_PORT} after {_TIMEOUT_S:g} s")
        time.sleep(0.02)


def serving(table: str, port: int) -> bool:
    """Whether a process listens on a TCP port, from the text of /proc/net/tcp."""
    rows = (link_end.split() for link_end in table.splitlines()[1:])
    return any(row[1].endswith(f":{port:04X}") and row[3] == _LISTENING for row in rows)


def average_bps(output: str, size_bytes: int) -> float:
    """The average rate that perftest's output has for messages of that size, bit/s; 0 if there is none."""
    return next((found.value for found in figures(output) if found.size_bytes == size_bytes), 0.0)
