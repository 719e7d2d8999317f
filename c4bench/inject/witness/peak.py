"""The witness of a lowered rate: the peak rate over short windows.

It uses the peak because a job's traffic is bursty, so its mean says nothing about the limit. A train shows the rate of
an idle fabric too; a job that sends at the limit shows it by itself, and a train would take a part of what the fault
leaves to it. A NIC's RDMA device sends datagrams to another host's NIC, which tell how fast they leave. Whatever
has no such device or peer, and the direction in which a NIC receives, is probed with packets of the kernel, by how fast
their replies arrive.
"""

import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from c4bench.errors import C4Error, UnhealthyError
from c4bench.inject import interfaces
from c4bench.inject.drivers.netdev import limited_bps, shaper_for
from c4bench.inject.registry import witness
from c4bench.inject.witness.base import IP, RDMA, Aftermath, Counters, Evidence, Values
from c4bench.inject.witness.echo import BY_KERNEL, FRAME_BYTES, HEADERS_BYTES, Echoes, Prober
from c4bench.model.fabric import Nic
from c4bench.model.fault import FaultRequest

_WINDOW_MIN_S = 1e-3
_TOLERANCE = 1.1
# Windows this long keep one burst well inside the tolerance.
_BURSTS_PER_WINDOW = 20
# Long compared with a shaper's burst, short compared with its queue.
_TRAIN_BYTES = 1 << 20
_TRAIN_S = 1.0
_FIRST_SKIPPED = 0.2
_INFINIBAND = Path("/sys/class/infiniband")


class PeakSample(NamedTuple):
    """The rate in one window, and when it ended (host's clock)."""

    end_s: float
    rate_bps: float


@witness("peak_rate")
class PeakRate:
    """Reads the interface's counters; for received packets during the fault, those of the ifb device.

    Where the kernel does not carry the data, its counters and packets say nothing of the data's rate. There a NIC's
    device counts what it sends. Raises UnhealthyError there for what a NIC receives.
    """

    def __init__(self, request: FaultRequest) -> None:
        target = interfaces.examine(request.interface)
        self._send = _sender(request)
        self.plane = RDMA if self._send else IP
        by_kernel = interfaces.hardware(request.interface) in BY_KERNEL
        if not by_kernel and self._send is None:
            raise UnhealthyError(
                f"{request.where}: the kernel does not carry its data; only the rate at which a NIC sends to another "
                "host's NIC can be measured there"
            )
        self._device = "" if by_kernel else request.interface.device
        self._limited_bps = limited_bps(request, target)
        self._counters = Counters(target.netns)
        self._receiving = request.choice("direction") == "rx"
        self._netdev, self._ifb = request.interface.netdev, target.ifb
        self._probe_bytes = target.mtu_bytes
        self._prober = None if self._send else _prober(target)
        burst_s = shaper_for(self._limited_bps).burst_bytes * 8 / self._limited_bps
        self._window_s = max(_WINDOW_MIN_S, _BURSTS_PER_WINDOW * burst_s)
        self._windows = max(1, round(request.witness_s / self._window_s))
        self._peak_before_bps = 0.0

    def before(self) -> Values:
        """`peak_bps` before the fault."""
        self._peak_before_bps = self._peak([*self._probe_train(), *self._windows_of(self._carried_bytes)])
        return {"peak_bps": self._peak_before_bps}

    def during(self, onset_s: float) -> Evidence:  # noqa: ARG002  (all samples are taken after the onset)
        """`peak_bps`, `limit_bps`; seen when traffic passed below the limit, and above it before."""
        samples = self._windows_of(self._shaped_bytes if self._receiving else self._carried_bytes)
        if self._peak(samples) < self._limited_bps / _TOLERANCE:
            samples += self._probe_train()
        peak = self._peak(samples)
        first = next((sample.end_s for sample in samples if sample.rate_bps > 0), None)
        seen = peak <= _TOLERANCE * self._limited_bps and self._peak_before_bps > self._limited_bps
        return Evidence({"peak_bps": peak, "limit_bps": self._limited_bps}, first if seen else None)

    def after(self) -> Aftermath:
        """`peak_bps`; above the limit it proves recovery, below it the job may just be pausing."""
        peak = self._peak([*self._probe_train(), *self._windows_of(self._carried_bytes)])
        return Aftermath({"peak_bps": peak}, True if peak > _TOLERANCE * self._limited_bps else None)

    def _carried_bytes(self) -> int:
        if self._device:
            return sent_bytes(self._device)
        traffic = self._counters.read(self._netdev)
        return traffic.rx_bytes if self._receiving else traffic.tx_bytes

    def _shaped_bytes(self) -> int:
        return self._counters.read(self._ifb).tx_bytes

    def _windows_of(self, count: Callable[[], int]) -> list[PeakSample]:
        samples = []
        last_s, last = time.monotonic(), count()
        for _ in range(self._windows):
            time.sleep(self._window_s)
            now_s, now = time.monotonic(), count()
            samples.append(PeakSample(time.time(), (now - last) * 8 / (now_s - last_s)))
            last_s, last = now_s, now
        return samples

    def _probe_train(self) -> list[PeakSample]:
        if self._send:
            return self._send()
        if self._prober is None:
            return []
        count = _TRAIN_BYTES // self._probe_bytes
        return reply_rate(self._prober.train(count, self._probe_bytes), self._probe_bytes)

    @staticmethod
    def _peak(samples: list[PeakSample]) -> float:
        return max(sample.rate_bps for sample in samples)


def sent_bytes(device: str) -> int:
    """What a device has sent: its counter has words of four bytes (IBTA 16.1.3.5)."""
    return int((_INFINIBAND / device / "ports/1/counters/port_xmit_data").read_text()) * 4


def _sender(request: FaultRequest) -> Callable[[], list[PeakSample]] | None:
    """What sends a train of datagrams by a NIC's RDMA device; None where that shows nothing of the request."""
    nic = request.interface
    if not isinstance(nic, Nic) or not nic.device or request.choice("direction") != "tx":
        return None
    if not (_INFINIBAND / nic.device).is_dir() or find_spec("pyverbs") is None:
        return None
    if (peer := next((other for other in request.peers if other.plane == nic.plane), None)) is None:
        return None

    def send() -> list[PeakSample]:
        from c4bench.verbs.datagram_train import send_train  # noqa: PLC0415  (pyverbs, which few witnesses need)

        try:
            train = send_train(nic, peer.address, _TRAIN_BYTES, _TRAIN_S)
        except C4Error:  # the link is down
            return []
        return [PeakSample(train.sent[-1].at_s, rate)] if (rate := train.rate_bps) else []

    return send


def reply_rate(echoes: Echoes, probe_bytes: int) -> list[PeakSample]:
    """The rate at which a train's replies arrived, after the first burst; empty for too few replies."""
    counted = echoes.replies[int(len(echoes.replies) * _FIRST_SKIPPED) :]
    if len(counted) < 2 or counted[-1].arrived_s <= counted[0].arrived_s:
        return []
    bits = (len(counted) - 1) * (probe_bytes + FRAME_BYTES - HEADERS_BYTES) * 8
    return [PeakSample(counted[-1].arrived_s, bits / (counted[-1].arrived_s - counted[0].arrived_s))]


def _prober(target: interfaces.InterfaceTarget) -> Prober | None:
    """None for an interface that cannot be probed; then only the job's traffic is measured."""
    try:
        return Prober(target)
    except UnhealthyError:
        return None
