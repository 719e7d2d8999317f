"""One rank of a program that uses NCCL, without a GPU: calls a profiler plugin as NCCL does, in the same order.

Ring collectives of real data over sockets, or over queue pairs as NCCL uses them: a thread is the GPU, which computes
and then runs kernels one by one; another one is the proxy, which moves data between GPU and network and reports the
states of its steps; the main thread calls the collectives. Nothing spins, so it runs in a lab too. Layouts and orders
are those of NCCL's sources. After SIGUSR1 its GPU computes for twice as long, after SIGUSR2 in half of all iterations.

    python nccl_rank.py '{"rank": 0, ...}'      # see `Config`
"""

import ctypes
import os
import queue
import random
import select
import signal
import socket
import struct
import sys
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

GROUP, COLL, PROXY_OP, PROXY_STEP, KERNEL_CH, GROUP_API, COLL_API = 1, 2, 8, 16, 64, 256, 512
SEND_GPU_WAIT, SEND_WAIT, RECV_WAIT, RECV_FLUSH_WAIT, RECV_GPU_WAIT = 8, 9, 10, 11, 12
OP_IN_PROGRESS, SEND_PEER_WAIT, KERNEL_CH_STOP = 19, 20, 22
NCCL_STEPS = 8
_QUEUE = 4 * NCCL_STEPS
CREDIT, RECEIVED = b"C", b"R"
_PORT = 6200


class Call(msgspec.Struct, frozen=True):
    """A collective that a rank calls."""

    func: str = "AllReduce"
    count: int = 4096
    root: int = 0


class Config(msgspec.Struct, frozen=True):
    """What a rank does; times are s. `calls` are those of some iterations, others call the usual collective.

    From iteration `late_from` on, its GPU computes for `late_s` more before the collective; `busy` names the iteration
    that its host does not call, `frozen` the one in which its GPU reads nothing. NCCL is `ahead` calls ahead of the GPU
    at most, and knows interface `version` at most. With `hosts`, which are the ranks' addresses, ranks find each other
    by TCP rather than in `folder`; with a `device` their data takes its queue pairs, and `address` is that NIC's own.
    """

    rank: int
    size: int
    plugin: str
    folder: str = ""
    hosts: tuple[str, ...] = ()
    device: str = ""
    address: str = ""
    count: int = 4096
    iterations: int = 1000
    channels: int = 2
    version: int = 7
    compute_s: float = 0.03
    late_from: int = 1 << 30
    late_s: float = 0.0
    busy: int = -1
    frozen: int = -1
    ahead: int = 1
    calls: dict[int, Call] = {}
    kernel_events: bool = True
    foreign_pids: bool = False


class _Coll(ctypes.Structure):
    _fields_ = [
        *[("seqNumber", ctypes.c_uint64), ("func", ctypes.c_char_p), ("sendBuff", ctypes.c_void_p)],
        *[("recvBuff", ctypes.c_void_p), ("count", ctypes.c_size_t), ("root", ctypes.c_int)],
        *[("datatype", ctypes.c_char_p), ("nChannels", ctypes.c_uint8), ("nWarps", ctypes.c_uint8)],
        *[("algo", ctypes.c_char_p), ("proto", ctypes.c_char_p), ("parentGroup", ctypes.c_void_p)],
    ]


class _ProxyOp(ctypes.Structure):
    _fields_ = [
        *[("pid", ctypes.c_int), ("channelId", ctypes.c_uint8), ("peer", ctypes.c_int), ("nSteps", ctypes.c_int)],
        *[("chunkSize", ctypes.c_int), ("isSend", ctypes.c_int)],
    ]


class _ProxyStep(ctypes.Structure):
    _fields_ = [("step", ctypes.c_int)]


class _KernelCh(ctypes.Structure):
    _fields_ = [("channelId", ctypes.c_uint8), ("pTimer", ctypes.c_uint64)]


class _Details(ctypes.Union):
    _fields_ = [
        *[("coll", _Coll), ("proxyOp", _ProxyOp), ("proxyStep", _ProxyStep), ("kernelCh", _KernelCh)],
        ("room", ctypes.c_uint8 * 112),
    ]


class _EventV4(ctypes.Structure):
    _fields_ = [("type", ctypes.c_uint8), ("parentObj", ctypes.c_void_p), ("rank", ctypes.c_int), ("of", _Details)]


class _Event(ctypes.Structure):
    _fields_ = [("type", ctypes.c_uint64), ("parentObj", ctypes.c_void_p), ("rank", ctypes.c_int), ("of", _Details)]


_LOG = ctypes.CFUNCTYPE(None)
_COMMON = (ctypes.c_char_p, ctypes.c_uint64, ctypes.c_int, ctypes.c_int, ctypes.c_int, _LOG)
_INIT_V4 = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_int), *_COMMON)
_INIT = ctypes.CFUNCTYPE(
    *[ctypes.c_int, ctypes.POINTER(ctypes.c_void_p), ctypes.c_uint64, ctypes.POINTER(ctypes.c_int)],
    *[ctypes.c_char_p, ctypes.c_int, ctypes.c_int, ctypes.c_int, _LOG],
)


class _Interface(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("init", ctypes.c_void_p),
        (
            "startEvent",
            ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p),
        ),
        ("stopEvent", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)),
        ("recordEventState", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)),
        ("finalize", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)),
    ]


class Profiler:
    """A plugin as NCCL of an interface `version` loads it: the newest interface that both have."""

    def __init__(self, plugin: str, version: int) -> None:
        library = ctypes.CDLL(plugin, mode=os.RTLD_NOW | os.RTLD_LOCAL)
        self.version = next(n for n in range(version, 3, -1) if hasattr(library, f"ncclProfiler_v{n}"))
        self._interface = _Interface.in_dll(library, f"ncclProfiler_v{self.version}")
        self.mask = ctypes.c_int(0)

    def init(self, comm_id: int, ranks: int, rank: int, name: bytes = b"dp") -> int | None:
        """The context of a communicator."""
        context, log = ctypes.c_void_p(), _LOG()
        if self.version == 4:
            init = _INIT_V4(self._interface.init)
            code = init(ctypes.byref(context), ctypes.byref(self.mask), name, comm_id, ranks, ranks, rank, log)
        else:
            init = _INIT(self._interface.init)
            code = init(ctypes.byref(context), comm_id, ctypes.byref(self.mask), name, ranks, ranks, rank, log)
        assert code == 0
        return context.value

    def start(
        self, context: int | None, kind: int, parent: int | None = None, rank: int = 0, **details: object
    ) -> int | None:
        """Start an event, if the plugin wants such; `details` are the members of its part of the descriptor."""
        event = (_EventV4 if self.version == 4 else _Event)(kind, parent, rank)
        part = {COLL: "coll", PROXY_OP: "proxyOp", PROXY_STEP: "proxyStep", KERNEL_CH: "kernelCh"}.get(kind)
        for name, value in details.items():
            setattr(getattr(event.of, part or "coll"), name, value)
        handle = ctypes.c_void_p()
        assert self._interface.startEvent(context, ctypes.byref(handle), ctypes.addressof(event)) == 0
        return handle.value

    def stop(self, handle: int | None) -> None:
        """Stop an event."""
        if handle is not None:
            assert self._interface.stopEvent(handle) == 0

    def state(self, handle: int | None, state: int, number: int = 0) -> None:
        """Say that an event has come to a state; `number` is its size or time."""
        if handle is not None:
            argument = ctypes.c_uint64(number)
            assert self._interface.recordEventState(handle, state, ctypes.addressof(argument)) == 0

    def finalize(self, context: int | None) -> None:
        """End a communicator."""
        if context is not None:
            assert self._interface.finalize(context) == 0


class Kernel(msgspec.Struct):
    """A collective on the GPU. Fifos have data between GPU and proxy, by channel; it has read so many, `freed`."""

    call: Call
    handle: int | None
    data: np.ndarray
    compute_s: float
    to_send: dict[int, deque]
    received: dict[int, deque]
    freed: dict[int, int]
    frozen: bool
    running: bool = False
    ended: bool = False


class _Transfer:
    """A proxy operation: `nsteps` messages to the next rank, or from the one before."""

    def __init__(self, kernel: Kernel, channel: int, peer: int, nsteps: int, chunk: int, *, sends: bool) -> None:
        self.kernel, self.channel, self.peer, self.nsteps = kernel, channel, peer, nsteps
        self.chunk, self.sends = chunk, sends
        self.handle: int | None = None
        self.steps: dict[int, int | None] = {}
        self.posted = self.moved = self.done = 0
        self.ready = False


def _read(connection: socket.socket) -> bytes:
    try:
        return connection.recv(1 << 16)
    except ConnectionResetError:
        return b""


class Wire:
    """A channel's connections to both neighbours. Counts what the next rank has granted and acknowledged.

    `readers` read what has come on a descriptor, and say whether more may come.
    """

    def __init__(self, to_next: socket.socket, from_previous: socket.socket) -> None:
        self.to_next, self.from_previous = to_next, from_previous
        self.credits = self.acknowledged = 0
        self.frames: deque[bytes] = deque()
        self._unread = b""
        self.readers = {to_next.fileno(): self.read_answers, from_previous.fileno(): self.read_frames}

    def read_answers(self) -> bool:
        """Read the next rank's answers; whether it lives."""
        answers = _read(self.to_next)
        self.credits += answers.count(CREDIT)
        self.acknowledged += answers.count(RECEIVED)
        return bool(answers)

    def read_frames(self) -> bool:
        """Read the previous rank's messages; whether it lives."""
        read = _read(self.from_previous)
        self._unread += read
        while len(self._unread) >= 4 and len(self._unread) - 4 >= (length := struct.unpack_from("<I", self._unread)[0]):
            self.frames.append(self._unread[4 : 4 + length])
            self._unread = self._unread[4 + length :]
        return bool(read)

    def send(self, data: bytes) -> None:
        """Send a message, for which there is credit. Nobody acknowledges it if the next rank has ended."""
        self.credits -= 1
        with suppress(BrokenPipeError):
            self.to_next.sendall(struct.pack("<I", len(data)) + data)

    def answer(self, answer: bytes) -> None:
        """Answer the previous rank."""
        with suppress(BrokenPipeError):
            self.from_previous.sendall(answer)


class Device:
    """An RDMA device, opened by the proxy's thread alone."""

    def __init__(self, config: Config) -> None:
        from c4bench.model.fabric import Nic  # noqa: PLC0415  (pyverbs, which not every machine has)
        from c4bench.verbs.device import Device as Opened  # noqa: PLC0415  (pyverbs, which not every machine has)
        from c4bench.verbs.transport import Remote, TransportProfile  # noqa: PLC0415  (pyverbs, which not every machine has)

        self.remote = Remote
        self.profile = TransportProfile("nccl", timeout=20, retries=7, rnr_retries=6)  # NCCL_IB_TIMEOUT, _RETRY_CNT
        self.opened = Opened(Nic("", 0, config.device, "", config.address, 0.0))
        self._ends: dict[int, Callable[[bool], None]] = {}
        self.readers = {self.opened.event_fds[0]: self._read}

    def connection(self, completed: Callable[[bool], None]) -> Any:
        """A queue pair; `completed` is called with whether something has arrived, or has been sent."""
        end = self.opened.connection(self.profile, _QUEUE, _QUEUE)
        self._ends[end.qp_num] = completed
        return end

    def connect(self, end: Any, other: dict[str, Any]) -> None:
        """Connect to the queue pair that the other end has said."""
        end.connect_by(self.remote(other["gid"], other["qp"]), receives=_QUEUE)

    def _read(self) -> bool:
        for completion in self.opened.completions():
            if completion.status:
                sys.stderr.write(f"NCCL WARN NET/IB: Got completion with error {completion.status}\n")
                os._exit(1)  # as PyTorch's watchdog ends a process whose communicator has failed
            self._ends[completion.qp](completion.received)
        return True


class RdmaWire:
    """A channel's queue pairs to both neighbours, in place of a `Wire`'s sockets, by which they find each other."""

    def __init__(self, device: Device, wire: Wire, chunk: int) -> None:
        self.credits = self.acknowledged = 0
        self.frames: deque[bytes] = deque()
        self.readers: dict[int, Callable[[], bool]] = {}
        self._chunk, self._sent, self._arrived = chunk, 0, 0
        self._granting = self._to_grant = 0  # credits that are not acknowledged, and those that wait for it
        self._memory = np.zeros((2, NCCL_STEPS, chunk), np.uint8)
        self._region = device.opened.register(self._memory.ctypes.data, self._memory.nbytes)
        self._to_next = device.connection(self._on_next)
        self._from_previous = device.connection(self._on_previous)
        own = {"gid": device.opened.here().gid}
        places = {"address": self._memory[1].ctypes.data, "key": self._region.rkey}
        _say(wire.to_next, own | {"qp": self._to_next.qp_num})
        device.connect(self._from_previous, _heard(wire.from_previous))
        _say(wire.from_previous, own | places | {"qp": self._from_previous.qp_num})
        self._there = _heard(wire.to_next)
        device.connect(self._to_next, self._there)
        _say(wire.to_next, {})  # a credit that comes before would be lost, and sent again after 4 s
        _heard(wire.from_previous)

    def _on_next(self, received: bool) -> None:
        if received:
            self._to_next.post_receive()
            self.credits += 1
        else:
            self.acknowledged += 1

    def _on_previous(self, received: bool) -> None:
        if received:
            self._from_previous.post_receive()
            self.frames.append(self._memory[1, self._arrived % NCCL_STEPS].tobytes())
            self._arrived += 1
        else:
            self._granting -= 1
            self._grant()

    def send(self, data: bytes) -> None:
        """Write a message, for which there is credit, into the next rank's memory."""
        self.credits -= 1
        slot = self._sent % NCCL_STEPS
        self._memory[0, slot] = np.frombuffer(data, np.uint8)
        local = self._memory[0, slot].ctypes.data, self._region.lkey
        there = self._there["address"] + slot * self._chunk, self._there["key"]
        self._to_next.write(local, there, len(data), immediate=0)
        self._sent += 1

    def answer(self, answer: bytes) -> None:
        """Grant the previous rank a message; the NIC acknowledges those that arrive."""
        self._to_grant += answer == CREDIT
        self._grant()

    def _grant(self) -> None:
        """As many as the queue takes: as in NCCL, credits wait until earlier ones are acknowledged (`net_ib.cc`)."""
        while self._to_grant and self._granting < _QUEUE:
            self._from_previous.write((0, 0), (0, 0), 0, immediate=0)
            self._granting, self._to_grant = self._granting + 1, self._to_grant - 1


def _say(connection: socket.socket, what: dict[str, Any]) -> None:
    connection.sendall(msgspec.json.encode(what) + b"\n")


def _heard(connection: socket.socket) -> dict[str, Any]:
    line = b""
    while not line.endswith(b"\n"):
        line += connection.recv(1)
    heard: dict[str, Any] = msgspec.json.decode(line)
    return heard


class Rank:
    """The program's process."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.profiler = Profiler(config.plugin or os.environ["NCCL_PROFILER_PLUGIN"], config.version)
        self.asked = 0
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, self._ask)
        self.context = self.profiler.init(0xC4, config.size, config.rank)
        self.wires = _connect(config)
        self.calls: dict[str, int] = defaultdict(int)
        self.stream: queue.Queue[Kernel] = queue.Queue()
        self.posted: queue.Queue[list[_Transfer] | Kernel] = queue.Queue()
        self.wake, self._waker = os.pipe()
        self.changed = threading.Condition()
        for thread in (self._gpu, self._proxy):
            threading.Thread(target=thread, daemon=True).start()

    def _ask(self, number: int, _frame: object) -> None:
        self.asked = number

    def _late_s(self, iteration: int) -> float:
        """How much longer than usual the GPU computes before an iteration's collective."""
        config = self.config
        slow = self.asked == signal.SIGUSR1 or (self.asked == signal.SIGUSR2 and random.random() < 0.5)
        return config.compute_s * slow + (config.late_s if iteration >= config.late_from else 0.0)

    def run(self) -> None:
        """Call a collective in each iteration, and check its result."""
        config = self.config
        under_way: deque[tuple[int, Kernel]] = deque()
        for iteration in range(config.iterations):
            if iteration == config.busy:
                time.sleep(3600)
            call = config.calls.get(iteration, Call(count=config.count))
            under_way.append((iteration, self._call(call, iteration, config.compute_s + self._late_s(iteration))))
            while len(under_way) >= config.ahead:
                self._finish(*under_way.popleft())
        for one in under_way:
            self._finish(*one)
        self.profiler.finalize(self.context)

    def _finish(self, iteration: int, kernel: Kernel) -> None:
        with self.changed:
            self.changed.wait_for(lambda: kernel.ended)
        if kernel.call.func == "AllReduce":
            expected = self.config.size * iteration + sum(range(self.config.size))
            assert (kernel.data == expected).all(), f"iteration {iteration}: {kernel.data}"

    def _call(self, call: Call, iteration: int, compute_s: float) -> Kernel:
        """What ncclAllReduce and the like do: put a kernel into the stream, and proxy operations before the proxy."""
        profiler, context, config = self.profiler, self.context, self.config
        api = []
        if profiler.version > 4:
            api.append(profiler.start(context, GROUP_API))
            api.append(profiler.start(context, COLL_API, api[0]))
            profiler.stop(api[1])
        group = profiler.start(context, GROUP)
        func, number = call.func, self.calls[call.func]
        details = {"seqNumber": number, "func": func.encode(), "count": call.count, "root": call.root}
        details |= {"datatype": b"ncclInt32", "nChannels": config.channels, "algo": b"RING", "proto": b"SIMPLE"}
        handle = profiler.start(context, COLL, api[1] if api else group, config.rank, **details)
        self.calls[func] += 1
        data = np.full(call.count, config.rank + iteration, np.int32)
        fifos = ({c: deque() for c in range(config.channels)} for _ in range(2))
        kernel = Kernel(
            call, handle, data, compute_s, *fifos, dict.fromkeys(range(config.channels), 0), iteration == config.frozen
        )
        self.posted.put([one for channel in range(config.channels) for one in self._transfers(kernel, channel)])
        self.posted.put(kernel)
        self._wake()
        profiler.stop(handle)
        profiler.stop(group)
        profiler.stop(api[0] if api else None)
        self.stream.put(kernel)
        return kernel

    def _transfers(self, kernel: Kernel, channel: int) -> list[_Transfer]:
        rank, size = self.config.rank, self.config.size
        sends, receives = _steps(kernel.call, rank, size)
        chunk = kernel.data.nbytes // self.config.channels // (size if kernel.call.func == "AllReduce" else 1)
        ends = ((receives, (rank - 1) % size, False), (sends, (rank + 1) % size, True))
        return [_Transfer(kernel, channel, peer, steps, chunk, sends=out) for steps, peer, out in ends if steps]

    def _wake(self) -> None:
        os.write(self._waker, b".")

    # The GPU

    def _gpu(self) -> None:
        while True:
            kernel = self.stream.get()
            time.sleep(kernel.compute_s)
            kernel.running = True
            self._wake()
            parts = np.split(kernel.data, self.config.channels)
            if kernel.call.func == "AllReduce":
                self._all_reduce(kernel, parts)
            else:
                self._broadcast(kernel, parts)
            with self.changed:
                kernel.ended = True
                self.changed.notify_all()
            self._wake()

    def _all_reduce(self, kernel: Kernel, parts: list[np.ndarray]) -> None:
        """Ring all-reduce: `size` - 1 steps that reduce, and as many that gather."""
        size, rank = self.config.size, self.config.rank
        chunks = [np.split(part, size) for part in parts]
        for step in range(2 * (size - 1)):
            self._give(kernel, [of[(rank - step) % size] for of in chunks])
            at = (rank - step - 1) % size
            for channel, data in enumerate(self._take(kernel)):
                if step < size - 1:
                    chunks[channel][at] += data
                else:
                    chunks[channel][at][:] = data

    def _broadcast(self, kernel: Kernel, parts: list[np.ndarray]) -> None:
        """From rank to rank, beginning at the root."""
        sends, receives = _steps(kernel.call, self.config.rank, self.config.size)
        if receives:
            for part, data in zip(parts, self._take(kernel), strict=True):
                part[:] = data
        if sends:
            self._give(kernel, parts)

    def _give(self, kernel: Kernel, data: list[np.ndarray]) -> None:
        for channel, part in enumerate(data):
            kernel.to_send[channel].append(part.tobytes())
        self._wake()

    def _take(self, kernel: Kernel) -> list[np.ndarray]:
        if kernel.frozen:
            time.sleep(3600)
        with self.changed:
            self.changed.wait_for(lambda: all(kernel.received.values()))
        taken = [np.frombuffer(fifo.popleft(), np.int32) for fifo in kernel.received.values()]
        for channel in kernel.freed:
            kernel.freed[channel] += 1
        self._wake()
        return taken

    # The proxy

    def _proxy(self) -> None:
        """Progress the oldest operation of each connection, and the oldest kernel."""
        queues: dict[tuple[int, bool], deque[_Transfer]] = defaultdict(deque)
        kernels: deque[tuple[Kernel, dict[int, int | None]]] = deque()
        sockets = {descriptor: read for wire in self.wires for descriptor, read in wire.readers.items()}
        while True:
            for ready in select.select([self.wake, *sockets], [], [])[0]:
                if ready == self.wake:
                    os.read(self.wake, 4096)
                elif not sockets[ready]():
                    del sockets[ready]
            while not self.posted.empty():
                new = self.posted.get()
                if isinstance(new, Kernel):
                    kernels.append((new, {}))
                    continue
                for transfer in new:
                    self._start(transfer)
                    queues[transfer.channel, transfer.sends].append(transfer)
            if kernels and self._watch(*kernels[0]):
                kernels.popleft()
            for waiting in queues.values():
                while waiting and (self._send if waiting[0].sends else self._receive)(waiting[0]):
                    waiting.popleft()

    def _watch(self, kernel: Kernel, handles: dict[int, int | None]) -> bool:
        """Report when a kernel runs on its channels, and when it has ended; whether it has."""
        profiler = self.profiler
        wanted = self.config.kernel_events and profiler.mask.value & KERNEL_CH
        if kernel.running and not handles:
            for channel in range(self.config.channels):
                details = {"channelId": channel, "pTimer": time.monotonic_ns()}
                start = profiler.start(self.context, KERNEL_CH, kernel.handle, **details) if wanted else None
                handles[channel] = start
        if kernel.ended:
            for handle in handles.values():
                profiler.state(handle, KERNEL_CH_STOP, time.monotonic_ns())
                profiler.stop(handle)
        return kernel.ended

    def _start(self, transfer: _Transfer) -> None:
        pid = os.getpid() + self.config.foreign_pids
        details = {"pid": pid, "channelId": transfer.channel, "peer": transfer.peer, "nSteps": transfer.nsteps}
        details |= {"chunkSize": transfer.chunk, "isSend": int(transfer.sends)}
        parent = transfer.kernel.handle
        transfer.handle = self.profiler.start(self.context, PROXY_OP, parent, self.config.rank, **details)

    def _post(self, transfer: _Transfer) -> bool:
        """Begin the next step, if there is room for one; whether it has."""
        if not transfer.ready:
            self.profiler.state(transfer.handle, OP_IN_PROGRESS)
            transfer.ready = True
        step = transfer.posted
        if step == transfer.nsteps or step >= transfer.done + NCCL_STEPS:
            return False
        start = self.profiler.start(self.context, PROXY_STEP, transfer.handle, self.config.rank, step=step)
        transfer.steps[step] = start
        transfer.posted += 1
        return True

    def _send(self, transfer: _Transfer) -> bool:
        """Progress an operation that sends; whether it has ended."""
        profiler, wire, steps = self.profiler, self.wires[transfer.channel], transfer.steps
        fifo = transfer.kernel.to_send[transfer.channel]
        while self._post(transfer):
            profiler.state(steps[transfer.posted - 1], SEND_GPU_WAIT)
        while fifo:
            profiler.state(steps[transfer.moved], SEND_PEER_WAIT)
            if not wire.credits:
                break
            data = fifo.popleft()
            wire.send(data)
            profiler.state(steps[transfer.moved], SEND_WAIT, len(data))
            transfer.moved += 1
        while wire.acknowledged and transfer.done < transfer.moved:
            wire.acknowledged -= 1
            self._end_step(transfer)
        return self._ended(transfer)

    def _receive(self, transfer: _Transfer) -> bool:
        """Progress an operation that receives; whether it has ended. A message larger than its buffer never comes."""
        profiler, wire, steps = self.profiler, self.wires[transfer.channel], transfer.steps
        while self._post(transfer):
            profiler.state(steps[transfer.posted - 1], RECV_WAIT)
            wire.answer(CREDIT)
        while transfer.moved < transfer.posted and wire.frames and len(wire.frames[0]) <= transfer.chunk:
            data = wire.frames.popleft()
            profiler.state(steps[transfer.moved], RECV_FLUSH_WAIT, len(data))
            wire.answer(RECEIVED)
            profiler.state(steps[transfer.moved], RECV_GPU_WAIT, len(data))
            transfer.moved += 1
            with self.changed:
                transfer.kernel.received[transfer.channel].append(data)
                self.changed.notify_all()
        while transfer.done < min(transfer.moved, transfer.kernel.freed[transfer.channel]):
            self._end_step(transfer)
        return self._ended(transfer)

    def _end_step(self, transfer: _Transfer) -> None:
        self.profiler.stop(transfer.steps.pop(transfer.done))
        transfer.done += 1

    def _ended(self, transfer: _Transfer) -> bool:
        if transfer.done < transfer.nsteps:
            return False
        self.profiler.stop(transfer.handle)
        return True


def _steps(call: Call, rank: int, size: int) -> tuple[int, int]:
    """How many messages a rank sends and receives on a channel."""
    if call.func == "AllReduce":
        return 2 * (size - 1), 2 * (size - 1)
    place = (rank - call.root) % size
    return int(place < size - 1), int(place > 0)


def _connect(config: Config) -> list[Any]:
    """Connect each channel to the next rank and from the one before: `Wire`s, or queue pairs in their place."""
    listening = _listen(config)
    to_next = [_reach(config, (config.rank + 1) % config.size) for _ in range(config.channels)]
    wires = [Wire(one, listening.accept()[0]) for one in to_next]
    if not config.device:
        return wires
    device, chunk = Device(config), 4 * config.count // config.channels // config.size
    connected = [RdmaWire(device, wire, chunk) for wire in wires]
    connected[0].readers = device.readers
    return connected


def _listen(config: Config) -> socket.socket:
    if config.hosts:
        return socket.create_server(("", _PORT + config.rank), backlog=config.channels)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(Path(config.folder) / f"{config.rank}.sock"))
    listening.listen(config.channels)
    return listening


def _reach(config: Config, rank: int) -> socket.socket:
    for _ in range(3000):
        try:
            if config.hosts:
                return socket.create_connection((config.hosts[rank], _PORT + rank))
            reached = socket.socket(socket.AF_UNIX)
            reached.connect(str(Path(config.folder) / f"{rank}.sock"))
        except (FileNotFoundError, ConnectionRefusedError):
            time.sleep(0.01)
        else:
            return reached
    raise TimeoutError(rank)


if __name__ == "__main__":
    Rank(msgspec.json.decode(sys.argv[1], type=Config)).run()
