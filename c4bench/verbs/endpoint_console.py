"""Control one endpoint remotely: a JSON command per line on standard input, a JSON answer per line on standard output.

For trying out a NIC by hand, and for scenarios that examine both ends of a connection:

    python -m c4bench.verbs.endpoint_console '{"host": "h0", "index": 0, "device": "mlx5_0", "netdev": "eth2",
                                      "address": "10.2.0.1", "rate_bps": 1e11}'

It ends at the end of its input.
"""

import ctypes
import struct
import sys
import time
from collections import defaultdict
from contextlib import ExitStack, suppress
from typing import TextIO

import msgspec

from c4bench.errors import C4Error, UsageError
from c4bench.model.fabric import Nic
from c4bench.verbs.counters import CACHE_S, SYSFS, hardware_counters
from c4bench.verbs.device import Device, Endpoint, active_mtu_bytes
from c4bench.verbs.discovery import discover, find
from c4bench.verbs.errors import VerbsError
from c4bench.verbs.packet_capture import PacketCapture
from c4bench.verbs.path_controls import PATH_CONTROLS
from c4bench.verbs.transport import PROFILES, Completion, Remote
from c4bench.verbs.waiting import waiter

_DEPTH = 64
# The number of a message of a stream.
_NUMBER = struct.Struct("=Q")


class End(msgspec.Struct, frozen=True):
    """The address of an endpoint and its memory, for the far end."""

    remote: Remote
    address: int
    rkey: int


class Streamed(msgspec.Struct, frozen=True):
    """When each message of a stream was sent (host's clock), and how many completed without an error."""

    sent_s: list[float]
    completed: int


class _Open(msgspec.Struct, frozen=True, tag="open", tag_field="do"):
    """Open the NIC and `length` bytes of memory; answers with its `End`.

    `timeout` and `retries` take the place of the profile's (`TransportProfile`). Without `reliable` it is a UC
    endpoint, whose lost packets stay lost.
    """

    length: int = 1 << 20
    profile: str = "brisk"
    waiting: str = "events"
    timeout: int | None = None
    retries: int | None = None
    reliable: bool = True


class _Connect(msgspec.Struct, frozen=True, tag="connect", tag_field="do"):
    """Connect to the far end; answers with the source port that the endpoint reports."""

    end: End
    source_port: int = 0


class _Write(msgspec.Struct, frozen=True, tag="write", tag_field="do"):
    """Write all the memory `times` times, one after the other; answers with the first error status, or ""."""

    times: int = 1
    rkey: int | None = None
    timeout_s: float = 10.0


class _GiveUp(msgspec.Struct, frozen=True, tag="give_up", tag_field="do"):
    """Write to the far end, which does not answer; answers with the status and after what time it came, s."""

    timeout_s: float = 100.0


class _Stream(msgspec.Struct, frozen=True, tag="stream", tag_field="do"):
    """Write `count` messages of `size` bytes, one every `gap_s`, each to a place of its own in the far end's memory.

    Each has its number, from 1. Answers with `Streamed`, of as many as `within_s` allowed.
    """

    count: int
    size: int
    gap_s: float = 0.0
    within_s: float = 10.0


class _Arrived(msgspec.Struct, frozen=True, tag="arrived", tag_field="do"):
    """Answers with the numbers of the messages that are in the memory, and forgets them."""

    count: int
    size: int


class _TimeWrites(msgspec.Struct, frozen=True, tag="time_writes", tag_field="do"):
    """Write all the memory `times` times; answers when each was complete (host's clock) and how long it took, s."""

    times: int = 1
    timeout_s: float = 10.0


class _Fence(msgspec.Struct, frozen=True, tag="fence", tag_field="do"):
    """Put the QP into the error state: it answers nobody any more."""


class _Move(msgspec.Struct, frozen=True, tag="move", tag_field="do"):
    """Move to another path; answers with the source port that the endpoint reports."""

    source_port: int


class _Seen(msgspec.Struct, frozen=True, tag="seen", tag_field="do"):
    """Answers with the source ports of packets to the far end, captured since the last call."""

    timeout_s: float = 0.1


class _TrafficClasses(msgspec.Struct, frozen=True, tag="traffic_classes", tag_field="do"):
    """Answers with the traffic classes of the packets that the NIC has sent since the last call, by opcode."""


class _Events(msgspec.Struct, frozen=True, tag="events", tag_field="do"):
    """Answers with the kinds of the asynchronous events since the last call; waits for the first."""

    timeout_s: float = 1.0


class _State(msgspec.Struct, frozen=True, tag="state", tag_field="do"):
    """Answers with the QP's state and the path control in use."""


class _Knobs(msgspec.Struct, frozen=True, tag="knobs", tag_field="do"):
    """Answers why each path control does not work here, and why a connected QP does not move; "" where it does."""


class _Find(msgspec.Struct, frozen=True, tag="find", tag_field="do"):
    """Answers with the port that discovery finds by the NIC's address."""


class _Counters(msgspec.Struct, frozen=True, tag="counters", tag_field="do"):
    """Answers with the hardware counters, after the kernel's cache of them has expired."""


_Command = (
    _Open
    | _Connect
    | _Write
    | _GiveUp
    | _Stream
    | _Arrived
    | _TimeWrites
    | _Fence
    | _Move
    | _Seen
    | _TrafficClasses
    | _Events
    | _State
    | _Knobs
    | _Find
    | _Counters
)


class EndpointConsole:
    """Runs commands on one NIC."""

    def __init__(self, nic: Nic) -> None:
        self._nic = nic
        self._opened = ExitStack()
        self._capture: PacketCapture | None = None

    def answer(self, request: str) -> object:
        """Run a command; returns its answer or its error."""
        try:
            command = msgspec.json.decode(request, type=_Command)
            # The method has the command's name.
            return {"answer": getattr(self, f"_{command.__struct_config__.tag}")(command)}
        except (C4Error, ValueError) as error:
            return {"error": str(error)}

    def _open(self, command: _Open) -> End:
        self.close()
        device = Device(self._nic)
        self._device = self._opened.enter_context(device)
        self._memory = ctypes.create_string_buffer(command.length)
        self._region = device.register(ctypes.addressof(self._memory), command.length)
        profile = PROFILES[command.profile]
        timeout = profile.timeout if command.timeout is None else command.timeout
        retries = profile.retries if command.retries is None else command.retries
        profile = msgspec.structs.replace(profile, timeout=timeout, retries=retries)
        self._endpoint = Endpoint(device, profile, sends=_DEPTH, receives=_DEPTH, reliable=command.reliable)
        self._waiter = waiter(command.waiting, [device])
        self._events_seen: list[str] = []
        here = msgspec.structs.replace(device.here(), qp=self._endpoint.qp_num)
        return End(here, ctypes.addressof(self._memory), self._region.rkey)

    def _connect(self, command: _Connect) -> int:
        self._far = command.end
        self._endpoint.connect(command.end.remote, command.source_port)
        return self._endpoint.source_port

    def _write(self, command: _Write) -> str:
        local = ctypes.addressof(self._memory), self._region.lkey
        remote = self._far.address, self._far.rkey if command.rkey is None else command.rkey
        for _ in range(command.times):
            self._endpoint.write(local, remote, len(self._memory))
            status = self._completed(command.timeout_s)
            if status:
                return status
        return ""

    def _give_up(self, command: _GiveUp) -> tuple[str, float]:
        began_s = time.monotonic()
        status = self._write(_Write(timeout_s=command.timeout_s))
        return status, time.monotonic() - began_s

    def _stream(self, command: _Stream) -> Streamed:
        sent_s: list[float] = []
        statuses: list[str] = []
        began_s = time.monotonic()
        until_s = began_s + command.within_s

        def complete(timeout_s: float) -> None:
            statuses.extend(completion.status for _, completion in self._wait(timeout_s))

        while len(sent_s) < command.count and (left_s := until_s - time.monotonic()) > 0:
            if len(sent_s) - len(statuses) >= _DEPTH:
                complete(left_s)
                continue
            sent_s.append(time.time())
            self._write_number(len(sent_s), command.size)
            time.sleep(max(0.0, began_s + len(sent_s) * command.gap_s - time.monotonic()))
            complete(0.0)
        while len(statuses) < len(sent_s) and (left_s := until_s - time.monotonic()) > 0:
            complete(left_s)
        return Streamed(sent_s, statuses.count(""))

    def _write_number(self, number: int, size: int) -> None:
        """Write a message of a stream to the same place in the far end's memory as it has here."""
        offset = (number - 1) * size
        _NUMBER.pack_into(self._memory, offset, number)
        local = ctypes.addressof(self._memory) + offset, self._region.lkey
        self._endpoint.write(local, (self._far.address + offset, self._far.rkey), size)

    def _time_writes(self, command: _TimeWrites) -> list[tuple[float, float]]:
        found = []
        for _ in range(command.times):
            began_s = time.monotonic()
            if status := self._write(_Write(timeout_s=command.timeout_s)):
                raise C4Error(f"QP {self._endpoint.qp_num} on {self._nic.name}: {status}")
            found.append((time.time(), time.monotonic() - began_s))
        return found

    def _arrived(self, command: _Arrived) -> list[int]:
        places = range(0, command.count * command.size, command.size)
        found = [number for place in places if (number := _NUMBER.unpack_from(self._memory, place)[0])]
        ctypes.memset(self._memory, 0, len(self._memory))
        return found

    def _fence(self, _: _Fence) -> str:
        self._endpoint.fence()
        return self._endpoint.state

    def _completed(self, timeout_s: float) -> str:
        deadline_s = time.monotonic() + timeout_s
        while (left_s := deadline_s - time.monotonic()) > 0:
            for _, completion in self._wait(left_s):
                return completion.status
        raise C4Error(f"QP {self._endpoint.qp_num} on {self._nic.name}: no completion within {timeout_s} s")

    def _wait(self, timeout_s: float) -> list[tuple[int, Completion]]:
        ready = self._waiter.wait(timeout_s)
        self._events_seen.extend(event.kind for event in ready.events)
        return ready.completions

    def _events(self, command: _Events) -> list[str]:
        if not self._events_seen:
            self._wait(command.timeout_s)
        events, self._events_seen = self._events_seen, []
        return events

    def _move(self, command: _Move) -> int:
        self._endpoint.move(command.source_port)
        return self._endpoint.source_port

    def _seen(self, command: _Seen) -> list[int]:
        if self._capture is None:
            self._captured()
            return []
        return sorted(self._capture.source_ports(self._far.remote, command.timeout_s))

    def _captured(self) -> PacketCapture:
        if self._capture is None:
            self._capture = self._opened.enter_context(PacketCapture(self._nic.netdev))
        return self._capture

    def _traffic_classes(self, _: _TrafficClasses) -> dict[int, list[int]]:
        classes: dict[int, set[int]] = defaultdict(set)
        for packet in self._captured().poll():
            classes[packet.opcode].add(packet.traffic_class)
        return {opcode: sorted(seen) for opcode, seen in sorted(classes.items())}

    def _state(self, _: _State) -> dict[str, str]:
        return {
            "qp": self._endpoint.state,
            "paths": type(self._device.paths).__name__,
        }

    def _knobs(self, _: _Knobs) -> dict[str, str]:
        controls = {name: control.obstacle(self._device) for name, control in PATH_CONTROLS.items()}
        return controls | {"moves of connected QPs": self._device.readdress_obstacle}

    def _find(self, _: _Find) -> object:
        return find(discover(SYSFS, _active_mtu), address=self._nic.address)._asdict()

    def _counters(self, _: _Counters) -> dict[str, int]:
        time.sleep(CACHE_S)
        return hardware_counters(self._nic.device)

    def close(self) -> None:
        """Close the NIC. May be called again."""
        self._opened.close()
        self._capture = None


def _active_mtu(device: str, port: int) -> int:
    """The active MTU of a port, 0 if its device cannot be opened."""
    with suppress(VerbsError):
        return active_mtu_bytes(device, port)
    return 0


def main(arguments: list[str], commands: TextIO, answers: TextIO) -> None:
    """Run commands until the input ends."""
    if len(arguments) != 1:
        raise UsageError("give the NIC as one argument, in JSON: host, index, device, netdev, address, rate_bps")
    console = EndpointConsole(msgspec.json.decode(arguments[0], type=Nic))
    try:
        for request in commands:
            print(msgspec.json.encode(console.answer(request)).decode(), file=answers, flush=True)
    finally:
        console.close()


if __name__ == "__main__":
    try:
        main(sys.argv[1:], sys.stdin, sys.stdout)
    except (UsageError, msgspec.ValidationError) as error:
        sys.exit(f"console: {error}")
