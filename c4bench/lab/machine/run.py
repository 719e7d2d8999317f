"""Boot a lab, copy its output as it comes, watch it, and return its exit code."""

import logging
import os
import resource
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import termios
import threading
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from queue import SimpleQueue

import msgspec

import c4bench
from c4bench.errors import UnhealthyError
from c4bench.lab.machine import containment
from c4bench.lab.machine.autopsy import Autopsy, Landmarks
from c4bench.lab.machine.kernel import Kernel
from c4bench.lab.machine.modes import Mode, lab_mode
from c4bench.lab.machine.spinning import computing_at
from c4bench.lab.spec import HOST_LOGS, READY_MARK, RESULT_FILE, SPEC_FILE, LabResult, LabSpec

_STALL_S = 120.0
# A lab that stands still for so long is named as one, with what computes; it may still be a long computation.
_NAMED_S = 20.0
# A lab that has printed something and is not up after this time has lost its first program. The clock then stands still
# and the kernel spins, as in the time until the first program sleeps.
_START_S = 30.0
_STARTING_S = 0.001
_WATCH_EVERY_S = 1.0


class LabWatchdog:
    """Watches one lab from its own thread. With `virtual` time, a clock that does not move means that the lab hangs.

    A lab whose processes fill its `memory_bytes` hangs too: they read their own code again and again.
    """

    def __init__(
        self,
        process: "subprocess.Popen[bytes]",
        landmarks: Landmarks,
        limit_s: float,
        memory_bytes: int,
        *,
        virtual: bool,
    ) -> None:
        self.verdict = ""
        self.peak_memory_bytes = 0
        self._process, self._landmarks, self._virtual = process, landmarks, virtual
        self._memory_bytes = memory_bytes
        self._limit_s, self._end = limit_s, time.monotonic() + limit_s
        self._complaint = ""
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="lab-watchdog", daemon=True)
        self._thread.start()

    def note_output(self, text: str) -> None:
        """Note what the lab has printed before it was up; "" once it is up."""
        self._complaint = text.strip()

    def stop(self) -> None:
        """Stop watching: the lab has ended."""
        self._stopped.set()
        self._thread.join()

    def _watch(self) -> None:
        last_s, moved_at, named = -1.0, (began := time.monotonic()), False
        gives_way = False
        while not self._stopped.wait(_WATCH_EVERY_S):
            now = time.monotonic()
            gives_way = gives_way or self._give_way()
            clock_s = self._clock_s()
            self.peak_memory_bytes = max(self.peak_memory_bytes, self._held_bytes())
            if clock_s != last_s or clock_s < 0:
                last_s, moved_at, named = clock_s, now, False
            elif now - moved_at > _NAMED_S and not named:
                named = True
                still = f"{now - moved_at:.0f} s of the machine"
                _logger.warning("the lab's clock stands still at %g s for %s: %s", clock_s, still, self._computing())
            if self._complaint and clock_s < _STARTING_S and now - began > _START_S:
                self._end_lab(f"the lab's first program failed: {self._complaint.splitlines()[-1]}")
            elif now - moved_at > _STALL_S:
                self._end_lab(f"the lab stood still at {clock_s:g} virtual s for {_STALL_S:g} s{self._full()}")
            elif now > self._end:
                self._end_lab(f"the lab ran past its limit of {self._limit_s / 3600:g} h (with pytest: --c4-limit)")

    def _give_way(self) -> bool:
        """Give the lab's session our niceness, where Linux shares processors among sessions; False before it is begun.

        The kernel begins a session. Without this all of it weighs as much as all of ours, however nice its processes.
        """
        try:
            kernel = self._kernel()
            if os.getsid(kernel) != kernel:
                return False
            Path(f"/proc/{kernel}/autogroup").write_text(str(os.nice(0)))
        except (OSError, IndexError):
            return False
        return True

    def _clock_s(self) -> float:
        """The lab's clock; negative where it cannot be read (real time, still starting, already ended)."""
        try:
            return self._autopsy().clock_s() if self._virtual else -1.0
        except (OSError, IndexError):
            return -1.0

    def _held_bytes(self) -> int:
        """The most that the kernel has held so far; 0 where it cannot be seen."""
        try:
            status = Path(f"/proc/{self._kernel()}/status").read_text()
        except (OSError, IndexError):
            return 0
        return next((int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM:")), 0)

    def _autopsy(self) -> Autopsy:
        """An autopsy of the kernel. Raises IndexError when there is none."""
        return Autopsy(self._kernel(), self._landmarks)

    def _kernel(self) -> int:
        """The process number of the kernel, the one child of our child. Raises IndexError when it has none."""
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        return int(children[0])

    def _full(self) -> str:
        if self.peak_memory_bytes < self._memory_bytes:
            return ""
        return f", all its {self._memory_bytes >> 30} GiB of memory in use: run less in one lab"

    def _computing(self) -> str:
        """Which processes of the lab run, and where they compute."""
        try:
            running = [
                line.removesuffix("running").strip() for line in self._autopsy().processes() if "running" in line
            ]
            places = computing_at(self._kernel())
        except (OSError, IndexError) as error:
            return f"what runs cannot be read ({error})"
        return f"process {', '.join(running) or 'unknown'} computes at {', '.join(places) or 'an unknown place'}"

    def _end_lab(self, why: str) -> None:
        try:
            doing = [*self._autopsy().processes(), self._computing()]
        except (OSError, IndexError) as error:
            doing = [f"(cannot be read: {error})"]
        self.verdict = f"{why}; what its processes were doing:\n" + "\n".join(doing)
        self._process.send_signal(signal.SIGKILL)
        self._stopped.set()


_logger = logging.getLogger(__name__)

MEMORY_BYTES = 4 << 30
# The kernel hashes its command line into its entropy, so nothing here may vary: no path, no seed. The first program is
# found through hostfs, where /proc/self/cwd is the kernel process's working directory: our home.
_ARGUMENTS = (
    f"mem={MEMORY_BYTES >> 20}M",
    "root=none",
    "rootfstype=hostfs",
    "rootflags=/",
    "rw",
    "loglevel=0",  # kernel messages go to its log only; the console is the command's
    "umid=lab",
    "con=null",
    "stderr=1",
    "init=/proc/self/cwd/init",
)
# The kernel removes this argument before it hashes the line.
_TRAPPING = {Mode.SECCOMP: "seccomp=on", Mode.PTRACE: "seccomp=off"}
_CONSOLE = {False: "con0=null,fd:1", True: "con0=fd:0,fd:1"}  # by: does the lab have the terminal?
_VIRTUAL_TIME = ("time-travel=inf-cpu", "time-travel-start=1767225600000000000")  # 2026-01-01 00:00:00 UTC

# A killed kernel's memory is freed within this time.
_GONE_WITHIN_S, _POLL_S = 10.0, 0.01

# What the lab's kernel logs when it kills a process because it cannot map another page.
_MAPPINGS_SPENT = b"UML ran out of memory on the host side"


class LabRun(msgspec.Struct, frozen=True):
    """A finished lab: the command's exit code, and the machine's time and memory that it took.

    `peak_memory_bytes` is the most that the lab's kernel held, its guests' memory included; 0 where it was never seen.
    """

    exit_code: int
    machine_s: float
    virtual_s: float
    boot_s: float
    peak_memory_bytes: int = 0


def run(program: Kernel, spec: LabSpec, home: Path, *, virtual: bool = True, limit_s: float = 3600.0) -> LabRun:
    """Run `spec` on this kernel in a fresh lab whose files live in `home`; output goes to our own, as it happens.

    Raises UnhealthyError when the kernel does not start, or when the watchdog had to end the lab; the message then says
    what every process was waiting for.
    """
    home.mkdir(parents=True, exist_ok=True)
    (home / RESULT_FILE).unlink(missing_ok=True)
    for left_over in (".uml", HOST_LOGS):
        shutil.rmtree(home / left_over, ignore_errors=True)
    (home / SPEC_FILE).write_bytes(msgspec.json.encode(spec))
    _write_init(home)
    started = time.monotonic()
    on = (program.version, lab_mode(), spec.topology.name, spec.seed, home)
    _logger.info("lab starting: Linux %s, %s, topology %s, seed %d, files in %s", *on)
    with (
        (home / "kernel.log").open("wb") as log,
        _own_processor() as processors,
        _start(program, spec, home, log.fileno(), processors, virtual=virtual) as process,
    ):
        watch = LabWatchdog(process, program.landmarks, limit_s, MEMORY_BYTES, virtual=virtual)
        with _ended(process), _raw_terminal(spec.interactive):
            ready_at = _carry_output(process, watch) if process.stdout else None
            process.wait()
        watch.stop()
    if watch.verdict:
        raise UnhealthyError(f"{watch.verdict} (kernel log: {home / 'kernel.log'})")
    result = _result(home)
    if result.error:
        raise UnhealthyError(f"the lab did not come up: {result.error}")
    if _MAPPINGS_SPENT in (home / "dmesg.log").read_bytes():
        most = Path("/proc/sys/vm/max_map_count").read_text().strip()
        raise UnhealthyError(
            f"a process of the lab was killed: its memory is in more pieces than the {most} that this machine allows; "
            "run less in one lab, or raise vm.max_map_count"
        )
    finished = time.monotonic()
    ended = LabRun(
        exit_code=result.exit_code,
        machine_s=finished - started,
        virtual_s=result.ended_s,
        boot_s=(ready_at or finished) - started,
        peak_memory_bytes=watch.peak_memory_bytes,
    )
    took = (ended.exit_code, ended.machine_s, ended.virtual_s)
    _logger.info("lab ended: exit code %d after %.1f s (%.1f s of lab time)", *took, extra=msgspec.to_builtins(ended))
    return ended


@contextmanager
def _own_processor() -> Iterator[set[int]]:
    """The processors of a lab: one that no other lab here has, or all of ours where each has one.

    A lab is one kernel whose processes take turns. Waking each other across processors, they take twice as long.
    """
    allowed = os.sched_getaffinity(0)
    with socket.socket(socket.AF_UNIX) as mark:
        free = next((processor for processor in sorted(allowed) if _mark(mark, processor)), None)
        yield allowed if free is None else {free}


def _mark(mark: socket.socket, processor: int) -> bool:
    """Take a processor, unless a lab has it. The name is bound and not listened to, so nobody can connect to it."""
    try:
        mark.bind(f"\0c4bench-lab-{processor}")
    except OSError:
        return False
    return True


def _start(
    program: Kernel, spec: LabSpec, home: Path, log: int, processors: set[int], *, virtual: bool
) -> "subprocess.Popen[bytes]":
    arguments = [*_ARGUMENTS, _TRAPPING[lab_mode()], _CONSOLE[spec.interactive], *(_VIRTUAL_TIME if virtual else ())]
    environment = {
        "HOME": ".",  # relative, so that the console's socket path stays short
        "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
        "TMPDIR": memory_directory(),
        "LD_PRELOAD": str(program.preload),
        "C4BENCH_SEED": str(spec.seed),
    }
    return subprocess.Popen(
        containment.wrap([str(program.program), *arguments]),
        cwd=home,
        env=environment,
        stdin=None if spec.interactive else subprocess.DEVNULL,
        stdout=None if spec.interactive else subprocess.PIPE,
        stderr=log,
        preexec_fn=partial(_before_exec, processors),  # noqa: PLW1509  (a few system calls, looked up before the fork)
    )


@contextmanager
def _ended(process: "subprocess.Popen[bytes]") -> Iterator[None]:
    """End the lab, and wait until its kernel is gone, if the block is left by an exception, such as a Ctrl-C."""
    try:
        yield
    except BaseException:
        kernels = _children(process.pid)
        process.kill()
        process.wait()
        deadline = time.monotonic() + _GONE_WITHIN_S
        while any(kernel.exists() for kernel in kernels) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        raise


def _children(pid: int) -> list[Path]:
    """The folders in /proc of a process's children; none once it has ended."""
    try:
        return [Path("/proc", child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def open_files_needed(hosts: int) -> int:
    """The open files that a lab may need: a lab of eight hosts has opened 1,400."""
    return 512 + 256 * hosts


def require_open_files(hosts: int) -> None:
    """Raises UnhealthyError if this machine allows too few open files for a lab of so many hosts: it would hang."""
    allowed, needed = resource.getrlimit(resource.RLIMIT_NOFILE)[1], open_files_needed(hosts)
    if allowed < needed:
        raise UnhealthyError(
            f"this machine allows {allowed} open files, and a lab of {hosts} hosts needs {needed}: "
            "raise the hard limit (ulimit -Hn)"
        )


def _before_exec(processors: set[int]) -> None:
    """Raise the limit of open files: the kernel opens one here for each that guests open, and 1,024 are too few."""
    containment.die_with_parent()
    os.sched_setaffinity(0, processors)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _write_init(home: Path) -> None:
    init = home / "init"
    code = shlex.quote(str(Path(c4bench.__file__).parents[1]))
    command = shlex.join([sys.executable, "-P", "-B", "-m", "c4bench.lab.guest.entry", str(home / SPEC_FILE)])
    init.write_text(f"#!/bin/sh\nPYTHONPATH={code} exec {command}\n")
    init.chmod(0o755)


def memory_directory() -> str:
    """A directory for the lab's memory file, which must be mapped executable there; in memory if possible."""
    for candidate in ("/dev/shm", tempfile.gettempdir(), "/var/tmp"):
        if _can_execute(candidate) and shutil.disk_usage(candidate).free > 4 << 30:
            return candidate
    raise UnhealthyError("no executable temporary directory with 4 GiB free: set TMPDIR to one")


def _can_execute(directory: str) -> bool:
    try:
        return not os.statvfs(directory).f_flag & os.ST_NOEXEC and os.access(directory, os.W_OK)
    except OSError:
        return False


@contextmanager
def _raw_terminal(wanted: bool) -> Iterator[None]:
    """Pass every key to the lab, Ctrl-C too."""
    if not wanted or not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(0)
    tty.setraw(0)
    try:
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)


def _carry_output(process: "subprocess.Popen[bytes]", watch: LabWatchdog) -> float | None:
    """Copy the console to our output until it closes; return the time when the lab was up.

    A lab stands still until its output is read, and the reader of our output may be slow, so a thread reads the lab's.
    """
    assert process.stdout is not None
    chunks: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(
        target=_read_console, args=(process.stdout.fileno(), chunks), name="lab-output", daemon=True
    ).start()
    ready_at = None
    held = b""  # what was printed before the lab was up; the mark may come in pieces
    output = sys.stdout.buffer
    while chunk := chunks.get():
        if ready_at is None:
            held += chunk
            if READY_MARK not in held:
                watch.note_output(held.decode(errors="replace"))
                continue
            ready_at = time.monotonic()
            watch.note_output("")
            _logger.info("lab ready")
            chunk, held = held.replace(READY_MARK, b""), b""
        output.write(chunk)
        output.flush()
    output.write(held)
    output.flush()
    return ready_at


def _read_console(console: int, chunks: "SimpleQueue[bytes]") -> None:
    """Pass on all output as it comes; an empty chunk means that it has ended."""
    with suppress(OSError):  # the console is closed when the run has been interrupted
        while chunk := os.read(console, 65536):
            chunks.put(chunk)
    chunks.put(b"")


def _result(home: Path) -> LabResult:
    try:
        return msgspec.json.decode((home / RESULT_FILE).read_bytes(), type=LabResult)
    except FileNotFoundError:
        tail = (home / "kernel.log").read_text(errors="replace").strip().splitlines()[-1:]
        last = tail[0] if tail else "it printed nothing (see `c4bench doctor`)"
        raise UnhealthyError(f"the lab's kernel ended early: {last} (log: {home / 'kernel.log'})") from None
