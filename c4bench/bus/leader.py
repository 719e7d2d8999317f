"""The one master that leads, and its state on the bus.

Whoever has the lease leads. The state is a bucket that only the leader writes, and each of its writes states the number
of the one before. A new leader begins with a write. From then on the server refuses every write of the former one,
which may not know yet that it leads no more; it ends at once.

The lease is renewed by a thread of its own, however busy the master is.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

import msgspec

from c4bench.bus.connection import FAILURES, Bus, OutdatedError, Stored
from c4bench.bus.lease import RENEWED_EVERY_S, HeldLease, Lease, Renewals, read_lease
from c4bench.bus.reader import StreamReader
from c4bench.bus.server import make_state
from c4bench.bus.subjects import bucket_key, bucket_stream, token
from c4bench.decoding import DecodingError, from_json
from c4bench.errors import UnhealthyError
from c4bench.wire.framing import MESSAGE_BYTES_MAX

Answer = TypeVar("Answer")
_logger = logging.getLogger(__name__)

MASTER = "master"
# A master that renews its lease no longer than this is taken to be gone (s), and takes itself to be deposed.
LEAD_ENDS_AFTER_S = 2.0
_LAST_ANSWER_WITHIN_S = 0.5
_AGAIN_S = 0.1
# Lines are written together where a log is written again.
_CHUNK_BYTES = 1 << 20
_LOGS = "logs"
_ANOTHER = "another master leads now, so this one ends"


class Leader:
    """Waits until it leads, then keeps the master's state (see `StateFiles`).

    `on_lost` is called on the thread, once, with the reason when it leads no more; what is written then raises
    UnhealthyError. `name` must be this process's own.
    """

    def __init__(self, bus: Bus, name: str, on_lost: Callable[[str], None]) -> None:
        self._bus, self._name, self._on_lost = bus, name, on_lost
        self._bucket = bus.subjects.state
        self.lost = ""
        self._leads, self._sequence = False, 0
        self._logs: dict[str, int] = {}
        self._sizes: dict[str, int] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="c4bench-leader", daemon=True)

    def lead(self) -> None:
        """Wait until we lead. Raises UnhealthyError if the bus cannot be reached, or what it keeps cannot be read."""
        self._thread.start()
        self._wait(self._bus.open())
        lease = self._wait(self._acquire())
        asyncio.run_coroutine_threadsafe(self._keep(lease), self._loop)
        logs = self.read(_LOGS)
        try:
            self._logs = from_json(logs, dict[str, int]) if logs else {}
        except DecodingError as error:
            raise UnhealthyError(f"{self.where(_LOGS)} is no list of logs ({error}): remove the bucket") from None

    def _wait(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result()
        except FAILURES as error:
            raise UnhealthyError(f"bus {self._bus.address}: {' '.join(str(error).split()) or 'no answer'}") from None

    async def _acquire(self) -> Lease:
        await make_state(self._bus)
        leader = self._bus.subjects.leader
        reader = StreamReader(self._bus, bucket_stream(leader), bucket_key(leader, MASTER))
        lease, renewals, waited_for = self._lease(), Renewals(LEAD_ENDS_AFTER_S), ""
        while True:
            for stored in await reader.read(_AGAIN_S):
                if (held := read_lease(self._bus, stored)) is not None:
                    renewals.renewed(MASTER, stored.sequence, held, time.monotonic())
            holder = renewals.holder(MASTER)
            if reader.caught_up and (not holder or renewals.ended(MASTER, time.monotonic())):
                if await lease.acquire(renewals, lambda _: HeldLease(self._name)) is not None:
                    break
            elif holder != waited_for:
                _logger.info("%s leads; waiting until it does not", holder)
                waited_for = holder
        await reader.close()
        await self._claim()
        return lease

    def _lease(self) -> Lease:
        return Lease(self._bus, MASTER, self._bus.subjects.leader)

    async def _claim(self) -> None:
        """Write first, so that nothing more is written by the leader before us."""
        while True:
            stream = await self._bus.js.stream_info(bucket_stream(self._bucket))
            subject = bucket_key(self._bucket, "leader")
            try:
                self._sequence = await self._bus.publish(
                    subject, self._name.encode(), after=stream.state.last_seq, in_stream=True
                )
            except OutdatedError:
                continue
            self._leads = True
            _logger.info("this master leads now: %s", self._name)
            return

    async def _keep(self, lease: Lease) -> None:
        answered_s = time.monotonic()
        while not self.lost:
            if await self._renewal_answered(lease):
                answered_s = time.monotonic()
            elif time.monotonic() - answered_s > LEAD_ENDS_AFTER_S and not await self._answered_now(lease):
                self._lose(f"the bus {self._bus.address} has not answered for {LEAD_ENDS_AFTER_S:g} s")
            await asyncio.sleep(RENEWED_EVERY_S)

    async def _renewal_answered(self, lease: Lease) -> bool:
        """Renew the lease, and lose it where another master has it; whether the bus has answered."""
        try:
            if not await lease.write(HeldLease(self._name)):
                self._lose(_ANOTHER)
        except FAILURES as error:
            _logger.debug("bus %s: lease not renewed: %s", self._bus.address, error)
            return False
        return True

    async def _answered_now(self, lease: Lease) -> bool:
        """Renew once more: where this process stood still, not the bus, the bus answers at once."""
        last = asyncio.create_task(self._renewal_answered(lease))
        await asyncio.wait({last}, timeout=_LAST_ANSWER_WITHIN_S)
        return last.done() and last.result()

    def _lose(self, why: str) -> None:
        if not self.lost:
            self.lost = why
            self._on_lost(why)

    def where(self, name: str) -> str:
        """The bucket, and the file's name."""
        return f"{name} in the bucket {self._bucket}"

    def read(self, name: str) -> bytes | None:
        """A file; None if there is none."""
        subject = bucket_key(self._bucket, f"file.{token(name)}")
        found = self._wait(self._bus.last(bucket_stream(self._bucket), subject))
        return found.body if found else None

    def replace(self, name: str, content: bytes, *, durable: bool = True) -> None:
        """Write a file; one that is too large is left out if it need not be `durable`. UnhealthyError if it must be."""
        if len(content) > MESSAGE_BYTES_MAX:
            problem = f"{name} has {len(content)} bytes, and the bus takes {MESSAGE_BYTES_MAX}"
            if durable:
                raise UnhealthyError(f"{problem}: split the cluster (docs/scale.md)")
            _logger.warning("%s: it is not saved", problem)
            return
        self._write(f"file.{token(name)}", content)

    def append(self, name: str, line: bytes) -> int:
        """Add a line to a log; return the size of all its lines."""
        if name not in self._sizes:
            self._sizes[name] = sum(len(one) + 1 for one in self.lines(name))
        if name not in self._logs:
            self._point({name: self._sequence + 1})
        self._add(self._logs[name], line + b"\n")
        self._sizes[name] += len(line) + 1
        return self._sizes[name]

    def _add(self, log: int, lines: bytes) -> None:
        self._write(f"line.{log}.{self._sequence + 1}", lines)

    def _point(self, logs: dict[str, int]) -> None:
        """Change under which number the lines of some logs are."""
        changed = self._logs | logs
        self._write(f"file.{_LOGS}", msgspec.json.encode(changed))
        self._logs = changed

    def rewrite(self, name: str, lines: Iterable[bytes]) -> int:
        """Replace all lines of a log; the old ones are there until the new ones are complete."""
        former, number, chunk, size = self._logs.get(name), self._sequence + 1, b"", 0
        for line in lines:
            chunk, size = chunk + line + b"\n", size + len(line) + 1
            if len(chunk) > _CHUNK_BYTES:
                self._add(number, chunk)
                chunk = b""
        if chunk:
            self._add(number, chunk)
        self._point({name: number})
        self._purge(former)
        self._sizes[name] = size
        return size

    def rotate(self, name: str, older: str) -> None:
        """Call a log `older`, in place of what was called so, and begin an empty one."""
        former = self._logs.get(older)
        self._point({older: self._logs[name], name: self._sequence + 1})
        self._purge(former)
        self._sizes[name] = 0
        self._sizes.pop(older, None)

    def lines(self, name: str) -> list[bytes]:
        """The lines of a log."""
        if name not in self._logs:
            return []
        subject = bucket_key(self._bucket, f"line.{self._logs[name]}.>")
        stored = self._wait(self._all(subject))
        return [line for one in stored for line in one.body.splitlines()]

    async def _all(self, subject: str) -> list[Stored]:
        return await StreamReader(self._bus, bucket_stream(self._bucket), subject).read_all()

    def remove(self, name: str) -> None:
        """Remove a log."""
        if (number := self._logs.get(name)) is not None:
            self._write(
                f"file.{_LOGS}", msgspec.json.encode({one: at for one, at in self._logs.items() if one != name})
            )
            self._logs.pop(name)
            self._sizes.pop(name, None)
            self._purge(number)

    def _purge(self, number: int | None) -> None:
        if number is not None:
            subject = bucket_key(self._bucket, f"line.{number}.>")
            self._wait(self._bus.purge(bucket_stream(self._bucket), subject))

    def _write(self, key: str, body: bytes) -> None:
        """Write as the leader. Raises UnhealthyError if we lead no more, or the bus does not answer."""
        if not self.lost:
            self._wait(self._stored(bucket_key(self._bucket, key), body))
        if self.lost:
            raise UnhealthyError(self.lost)

    async def _stored(self, subject: str, body: bytes) -> None:
        while not self.lost:
            try:
                self._sequence = await self._bus.publish(subject, body, after=self._sequence, in_stream=True)
            except OutdatedError:
                if not await self._was_stored(subject, body):
                    self._lose(_ANOTHER)
            except FAILURES:
                # `_keep` notices when the bus is gone for good.
                await asyncio.sleep(_AGAIN_S)
                continue
            return

    async def _was_stored(self, subject: str, body: bytes) -> bool:
        """Whether the newest write is this one: it was stored, and the answer was lost."""
        stream = await self._bus.js.stream_info(bucket_stream(self._bucket))
        found = await self._bus.last(bucket_stream(self._bucket), subject)
        newest = found is not None and found.sequence == stream.state.last_seq == self._sequence + 1
        if newest and found is not None and found.body == body:
            self._sequence = found.sequence
            return True
        return False

    def close(self) -> None:
        """Let another master lead at once, unless one does. May be called again."""
        if not self._thread.is_alive():
            return
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        leads, self.lost = self._leads and not self.lost, self.lost or "this master has ended"
        if leads:
            await self._give_up()
        await self._bus.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _give_up(self) -> None:
        lease = self._lease()
        try:
            held = await lease.look()
            if held is not None and held.holder == self._name:
                await lease.write(HeldLease(""))
        except FAILURES as error:
            _logger.warning("bus %s: %s", self._bus.address, error)
