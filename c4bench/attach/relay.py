"""Words between the libraries at both ends of a connection, when it goes on at another NIC: from agent to agent.

A library's connection begins with {"failover":1}; its answer says which NIC is the other one of which. Then each line
is a message: this process has an end of a connection, or has it no more, or says something to the other end. An end is
a queue pair by the address of its NIC and its number. For one that is not there, its agent says "absent", unless it has
just begun and may not have heard of it. A word may be lost.

    {"failover":1}                                                                   first
    {"twins":"mlx5_0=mlx5_1,mlx5_1=mlx5_0"} or {"error":"why not"}                   its answer
    {"have":"10.0.0.1","qp":17}, later {"leave":"10.0.0.1","qp":17}                  an end here
    {"refused":"10.0.0.9","qp":17,"error":"why not"}                                 an end that is not the process's
    {"source":"10.0.0.1","qp":17,"destination":"10.1.0.1","remote_qp":18,"word":""}  in both directions
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import msgspec

from c4bench.attach import owners
from c4bench.budget import AGENT, ATTACHED
from c4bench.decoding import from_json
from c4bench.errors import C4Error
from c4bench.model.fabric import Nic
from c4bench.wire.channel import ChannelClosed
from c4bench.wire.messages import AttachedWord

FIRST = b'{"failover"'
_HAVE, _LEAVE = b'{"have"', b'{"leave"'
_ABSENT = "absent"
# Ends that the processes of a host may have.
_ENDS_AT_MOST = ATTACHED.records * 256
# Bytes that may wait for a process that does not read. Words beyond these, and more words at once to the master than it
# answers for an agent, are lost.
_UNREAD_AT_MOST = 16 * ATTACHED.bytes
_FORWARDING_AT_MOST = AGENT.records // 4
# For so long after its agent began a process may not have said what ends it has: it looks for one ten times a second.
_BEGINNING_S = 1.0
_End = tuple[str, int]


class _Have(msgspec.Struct, frozen=True):
    have: str
    qp: int


class _Leave(msgspec.Struct, frozen=True):
    leave: str
    qp: int


def twins(nics: Sequence[Nic]) -> str:
    """Which device goes on for which: the next one of the host with the same rate, by index, after the last the first.

    Hosts of one fabric have like NICs in the same order, so both ends of a connection choose the same one.
    """
    pairs = []
    ordered = sorted(nics, key=lambda nic: nic.index)
    for place, nic in enumerate(ordered):
        following = (*ordered[place + 1 :], *ordered[:place])
        other = next((one for one in following if one.rate_bps == nic.rate_bps), None)
        if other is not None:
            pairs.append(f"{nic.device}={other.device}")
    return ",".join(pairs)


class WordRelay:
    """Brings words to and from processes of this host, whose `nics` they use.

    `forward` has a word brought to another host; it raises C4Error where that cannot be. `owner` says which process has
    a queue pair of a device, None where that is not known.
    """

    def __init__(
        self,
        nics: Sequence[Nic],
        forward: Callable[[AttachedWord], Awaitable[None]],
        owner: Callable[[str, int], int | None] = owners.owner,
    ) -> None:
        self._twins, self._devices = twins(nics), {nic.address: nic.device for nic in nics}
        self._forward, self._owner = forward, owner
        self._began_s = time.monotonic()
        self._ends: dict[_End, asyncio.StreamWriter] = {}
        self._forwarding: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pid: int) -> None:
        """Serve process `pid`, which has introduced itself. Raises DecodingError for other lines than these."""
        writer.write(msgspec.json.encode({"twins": self._twins}) + b"\n")
        try:
            while line := await reader.readline():
                self._serve_line(line, writer, pid)
        finally:
            self._ends = {end: other for end, other in self._ends.items() if other is not writer}

    def deliver(self, word: AttachedWord) -> None:
        """Bring a word to the process that has its end; where none has, the sender learns that."""
        writer = self._ends.get((word.destination, word.remote_qp))
        if writer is not None and not writer.is_closing():
            _write(writer, word)
        elif word.word != _ABSENT and time.monotonic() > self._began_s + _BEGINNING_S:
            self._send(AttachedWord(word.destination, word.remote_qp, word.source, word.qp, _ABSENT))

    def _serve_line(self, line: bytes, writer: asyncio.StreamWriter, pid: int) -> None:
        if line.startswith(_HAVE):
            said = from_json(line, _Have)
            self._add((said.have, said.qp), writer, pid)
        elif line.startswith(_LEAVE):
            gone = from_json(line, _Leave)
            if self._ends.get((gone.leave, gone.qp)) is writer:
                del self._ends[gone.leave, gone.qp]
        else:
            word = from_json(line, AttachedWord)
            if self._ends.get((word.source, word.qp)) is writer:
                self._send(word)

    def _add(self, end: _End, writer: asyncio.StreamWriter, pid: int) -> None:
        """A process has an end; one that it cannot have is refused."""
        if why := self._obstacle(end, writer, pid):
            _write(writer, {"refused": end[0], "qp": end[1], "error": why})
        else:
            self._ends[end] = writer

    def _obstacle(self, end: _End, writer: asyncio.StreamWriter, pid: int) -> str:
        """Why a process cannot have an end; "" where it can."""
        address, qp = end
        if address not in self._devices:
            return f"{address} is no address of this host's NICs in the inventory"
        known, owner = self._ends.get(end), self._owner(self._devices[address], qp)
        if owner not in {None, pid} or (owner is None and known not in {None, writer} and not known.is_closing()):
            return f"queue pair {qp} at {address} is another process's"
        if end not in self._ends and len(self._ends) >= _ENDS_AT_MOST:
            return f"more than {_ENDS_AT_MOST} queue pairs on this host"
        return ""

    def _send(self, word: AttachedWord) -> None:
        if word.destination in self._devices:
            self.deliver(word)
            return
        if len(self._forwarding) >= _FORWARDING_AT_MOST:
            return
        task = asyncio.get_running_loop().create_task(self._bring(word))
        self._forwarding.add(task)
        task.add_done_callback(self._forwarding.discard)

    async def _bring(self, word: AttachedWord) -> None:
        with suppress(C4Error, ChannelClosed):  # the process says it again, and goes on without an answer after a while
            await self._forward(word)


def _write(writer: asyncio.StreamWriter, line: AttachedWord | dict[str, str | int]) -> None:
    if writer.transport.get_write_buffer_size() < _UNREAD_AT_MOST:
        writer.write(msgspec.json.encode(line) + b"\n")
