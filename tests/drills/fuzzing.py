"""Fuzzing: what strangers may send, and what is wrong with a part that consumes it.

A target has valid inputs and the real part that consumes them. Each input follows from a seed, the target's name and a
number, so it can be made again alone. An escape is an error that is none of ours, an error that is not one printable
line, an input that takes too long, or memory that is not given back.
"""

import gc
import logging
import os
import random
import signal
import time
import tracemalloc
from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NamedTuple

from fuzz_mutations import Corpus, mutated

from c4bench.cli.main import printed_lines
from c4bench.errors import C4Error
from c4bench.foreign_text import one_line
from c4bench.logs import Text

# Inputs have a few KiB: what takes longer (s of the processor) spins. An input is ended after the second time.
SPIN_S, ENDED_AFTER_S = 0.1, 3.0
# What all inputs of a target may leave, and what one may take.
GROWTH_AT_MOST_BYTES, PEAK_AT_MOST_BYTES = 32 << 20, 64 << 20
_LONGEST_REPR = 400
_COLLECTED_EVERY, _TRACED_EVERY, _TIMED_AGAIN = 25, 4, 2
_ENVIRONMENT = "C4BENCH_FUZZ"

Consume = Callable[[bytes], object]


class Target(NamedTuple):
    """`consumer(folder)` is a context whose value consumes inputs; it may raise C4Error and `refusals` only.

    With `several` lines an error may have a line for each thing that is wrong. Inputs that are not `sound` may be
    refused also as they are.
    """

    name: str
    corpus: Callable[[], Corpus]
    consumer: Callable[[Path], AbstractContextManager[Consume]]
    refusals: tuple[type[Exception], ...] = ()
    several: bool = False
    sound: bool = True


class Result(NamedTuple):
    """What was found, a line for each escape; and what the inputs took and left, in bytes."""

    escapes: tuple[str, ...]
    slowest_s: float
    peak_bytes: int
    grown_bytes: int


class Chosen(NamedTuple):
    """Which inputs are tried: those of a seed from the number `first` on."""

    seed: str
    first: int
    count: int


class Spin(BaseException):
    """An input does not come to an end; no `except Exception` may hide it."""


def chosen(seed: str, count: int) -> Chosen:
    """These, or those of the environment: `C4BENCH_FUZZ=SEED[:FIRST:COUNT]`."""
    given, _, rest = os.environ.get(_ENVIRONMENT, "").partition(":")
    first, _, number = rest.partition(":")
    return Chosen(given or seed, int(first or 0), int(number or count))


def again(target: Target, seed: str, number: int) -> str:
    """The command that tries one input again."""
    which = f"{_ENVIRONMENT}={seed}:{number}:1"
    return f"{which} .venv/bin/pytest tests/drills/attacks/test_fuzz.py -k '{target.name} and not night'"


def fuzz(target: Target, folder: Path, inputs: Chosen) -> Result:
    """Have a target consume its valid inputs, which it must not refuse, and then the mutated ones."""
    corpus, trial = target.corpus(), Trial(target)
    with logged() as log, target.consumer(folder) as consume, ended():
        for number, seed in enumerate(corpus.seeds):
            if wrong := trial.wrong(consume, seed, valid=target.sound) or log.wrong():
                trial.escapes.append(f"{target.name}, valid input {number}: {wrong}: {shown(seed)}")
        began_bytes = resident_bytes()
        for number in range(inputs.first, inputs.first + inputs.count):
            data = mutated(corpus, random.Random(f"{inputs.seed}/{target.name}/{number}"))
            wrong = trial.wrong(consume, data, traced=number % _TRACED_EVERY == 0) or log.wrong()
            if wrong:
                trial.escapes.append(f"{again(target, inputs.seed, number)}\n  {wrong}: {shown(data)}")
            if number % _COLLECTED_EVERY == 0:
                gc.collect()
        grown_bytes = resident_bytes() - began_bytes
    if grown_bytes > GROWTH_AT_MOST_BYTES:
        trial.escapes.append(f"{target.name}: {inputs.count} inputs have left {grown_bytes >> 20} MiB")
    return Result(tuple(trial.escapes), trial.slowest_s, trial.peak_bytes, grown_bytes)


class Trial:
    """Inputs of one target: what was wrong, how long (s of the processor) and how much memory an input took at most."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self.escapes: list[str] = []
        self.slowest_s, self.peak_bytes = 0.0, 0

    def wrong(self, consume: Consume, data: bytes, *, valid: bool = False, traced: bool = False) -> str:
        """What is wrong after an input, "" for nothing. Tracing memory takes time, so one that is traced is not timed.

        An input that takes too long is tried again: others may have the processor's caches.
        """
        if traced:
            tracemalloc.start()
        try:
            wrong, took_s = self._tried(consume, data, valid=valid)
            peak_bytes = tracemalloc.get_traced_memory()[1] if traced else 0
        finally:
            tracemalloc.stop()
        self.peak_bytes = max(self.peak_bytes, peak_bytes)
        if wrong or traced:
            return wrong or (f"it took {peak_bytes >> 20} MiB" if peak_bytes > PEAK_AT_MOST_BYTES else "")
        for _ in range(_TIMED_AGAIN):
            if took_s > SPIN_S:
                took_s = min(took_s, self._tried(consume, data, valid=valid)[1])
        self.slowest_s = max(self.slowest_s, took_s)
        return f"it took {took_s:.2f} s" if took_s > SPIN_S else ""

    def _tried(self, consume: Consume, data: bytes, *, valid: bool) -> tuple[str, float]:
        wrong, began_s = "", time.process_time()
        signal.setitimer(signal.ITIMER_PROF, ENDED_AFTER_S)
        try:
            consume(data)
        except (C4Error, *self._target.refusals) as error:
            printed = printed_lines(error) if isinstance(error, C4Error) else [one_line(error)]
            is_line = all(map(str.isprintable, printed)) and (self._target.several or len(printed) == 1)
            wrong = "" if is_line and not valid else f"refused with {shown(str(error))}"
        except Spin:
            wrong = "it does not end"
        except Exception as error:
            wrong = f"{type(error).__name__} at {place_of(error)}: {shown(str(error))}"
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        return wrong, time.process_time() - began_s


def resident_bytes() -> int:
    """The memory of this process, without what waits to be collected."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def place_of(error: BaseException) -> str:
    """The last line of ours that an error went through."""
    trace, place = error.__traceback__, "?"
    while trace is not None:
        path = Path(trace.tb_frame.f_code.co_filename)
        if "c4bench" in path.parts[:-1] and "drills" not in path.parts and "site-packages" not in path.parts:
            place = f"{path.parent.name}/{path.name}:{trace.tb_lineno}"
        trace = trace.tb_next
    return place


def shown(data: bytes | str) -> str:
    """Data as a bounded literal."""
    text = repr(data)
    return text if len(text) <= _LONGEST_REPR else f"{text[:_LONGEST_REPR]}... ({len(data)} in all)"


@contextmanager
def ended():
    """An input that does not end is ended, and the collector runs only where it is called: its time is no input's."""
    gc.disable()
    # What was there before is no input's: it is not looked through again and again.
    gc.freeze()
    before = signal.signal(signal.SIGPROF, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGPROF, before)
        gc.unfreeze()
        gc.enable()


def _end(*_: object) -> None:
    raise Spin


class Log(logging.Handler):
    """Formats what is logged as commands do, and shows none of it: thousands of refusals say nothing."""

    def __init__(self) -> None:
        super().__init__()
        self._format = Text().format
        self._wrong = ""

    def emit(self, record: logging.LogRecord) -> None:
        """A traceback is a bug of ours, and so is a message that cannot be formatted or is no line."""
        failure = record.exc_info[1] if record.exc_info else None
        if failure is not None:
            self._wrong = f"logged {type(failure).__name__} at {place_of(failure)}: {shown(str(failure))}"
        elif not self._format(record).isprintable():
            self._wrong = f"logged {shown(record.getMessage())}"

    def wrong(self) -> str:
        """What was wrong since the last call; "" for nothing."""
        wrong, self._wrong = self._wrong, ""
        return wrong


@contextmanager
def logged():
    """All logging goes to the context's Log, and nowhere else."""
    root, log = logging.getLogger(), Log()
    before, root.handlers = root.handlers, [log]
    levels = {logger: logger.level for logger in (root, logging.getLogger("c4bench"))}
    for logger in levels:
        logger.setLevel(logging.INFO)
    try:
        yield log
    finally:
        root.handlers = before
        for logger, level in levels.items():
            logger.setLevel(level)
