"""Commands of a site that are given each finding: what is done about it is theirs.

A command gets one JSON object on its standard input (`HookInput`; reports/schema/hook.schema.json), no shell, and the
master's environment. Each run is an event, also one that a limit or a dry run has prevented.
"""

import asyncio
import logging
import shlex
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from fnmatch import fnmatchcase

import msgspec

from c4bench.control.state.event_log import EventLog
from c4bench.control.state.registry import name_of
from c4bench.foreign_text import one_line
from c4bench.model.diagnosis import Diagnosis
from c4bench.model.event import Diagnosed, HookRan
from c4bench.model.hook import HookInput

_logger = logging.getLogger(__name__)

_HOUR_S = 3600.0
# Of what a command prints so much (bytes) is read, and its first line kept.
_OUTPUT_BYTES = 64 << 10


class HookPolicy(msgspec.Struct, frozen=True):
    """The `commands`, each as its words, and how they are bounded.

    They are given findings about jobs whose names one of the patterns `jobs` matches (fnmatch). Each runs at most
    `per_hour` times an hour, for at most `timeout_s`. With `dry_run` nothing is run.
    """

    commands: tuple[tuple[str, ...], ...] = ()
    jobs: tuple[str, ...] = ("*",)
    per_hour: int = 6
    timeout_s: float = 60.0
    dry_run: bool = False


class Hooks:
    """Runs the commands one after the other, for each finding that the log gets; `hosts` are those of an attempt."""

    def __init__(self, policy: HookPolicy, log: EventLog, hosts: Callable[[str], Sequence[str]]) -> None:
        self._policy, self._log, self._hosts = policy, log, hosts
        self._ran_s: dict[tuple[str, ...], deque[float]] = {command: deque() for command in policy.commands}

    async def run(self) -> None:
        """Serve new findings until cancelled."""
        async for event in self._log.follow(-1):
            if isinstance(event, Diagnosed) and self._concerns(name_of(event.diagnosis.job)):
                for command in self._policy.commands:
                    await self._serve(command, event.diagnosis)

    def _concerns(self, job: str) -> bool:
        return any(fnmatchcase(job, pattern) for pattern in self._policy.jobs)

    async def _serve(self, command: tuple[str, ...], diagnosis: Diagnosis) -> None:
        code, said = await self._run(
            command, HookInput.of(diagnosis, name_of(diagnosis.job), self._hosts(diagnosis.job))
        )
        words, said = shlex.join(command), one_line(said)
        self._log.publish(HookRan(time.time(), diagnosis.job, diagnosis.component, words, code, said))
        level = logging.WARNING if code else logging.INFO
        _logger.log(level, "%s: hook %s for %s: %s", diagnosis.job, words, diagnosis.component, said)

    async def _run(self, command: tuple[str, ...], given: HookInput) -> tuple[int | None, str]:
        """Its exit code, and the first line that it printed; None, and why, where it was not run or did not end."""
        ran_s, now_s = self._ran_s[command], time.time()
        while ran_s and now_s - ran_s[0] > _HOUR_S:
            ran_s.popleft()
        if len(ran_s) >= self._policy.per_hour:
            return None, f"not run: it ran {len(ran_s)} times within the last hour, which is the limit"
        if self._policy.dry_run:
            return None, "not run: a dry run"
        ran_s.append(now_s)
        return await _ended(command, msgspec.json.encode(given), self._policy.timeout_s)


@asynccontextmanager
async def running(hooks: Hooks) -> AsyncIterator[None]:
    """Serve new findings until the end of the block."""
    task = asyncio.create_task(hooks.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait((task,))


async def _ended(command: Sequence[str], given: bytes, timeout_s: float) -> tuple[int | None, str]:
    pipe, output = asyncio.subprocess.PIPE, asyncio.subprocess.STDOUT
    try:
        process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=output)
    except OSError as error:
        return None, f"not run: {error.strerror}; correct the command"
    try:
        async with asyncio.timeout(timeout_s):
            said, _ = await asyncio.gather(_first_line(process), _give(process, given))
            return await process.wait(), said
    except TimeoutError:
        return None, f"killed after {timeout_s:g} s"
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _give(process: asyncio.subprocess.Process, given: bytes) -> None:
    """Write its input; a command need not read it."""
    assert process.stdin
    try:
        process.stdin.write(given)
        await process.stdin.drain()
    except ConnectionError:
        return
    finally:
        process.stdin.close()


async def _first_line(process: asyncio.subprocess.Process) -> str:
    """The first line of its output, which is read to its end."""
    assert process.stdout
    kept = b""
    while more := await process.stdout.read(_OUTPUT_BYTES):
        kept = (kept + more)[:_OUTPUT_BYTES]
    return kept.decode(errors="replace").strip().partition("\n")[0]
