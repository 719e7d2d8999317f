"""A shell on a switch on which c4bench is not installed: the scripts that it runs, over SSH, and what they answer.

A script is one function that its last line calls, so half a script does nothing. That line is sent when the shell there
has said that it is ready: what comes of it is later than that, however long the connection took. It runs as root, in
English, and what it answers stands on lines that begin with a word of its own: banners and messages of the day are
passed over. What changes a switch does so under a lock there, after it has written how to take the change back to /run,
which no disk can fill, and after a timer is armed that does that at the end of the lease. So neither the controller nor
the network is needed for the end of a fault, and a restart of the switch takes with it the change (none is saved), the
file and the timer.
"""

import os
import secrets
import shlex
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import IO, NamedTuple

import msgspec

from c4bench.errors import UnhealthyError
from c4bench.model.fault import AgentlessSwitch
from c4bench.remote.protocol import Completed, drain, last_line
from c4bench.switches.system import SHELL, Cycle, Read, System
from c4bench.switches.systems import SYSTEMS

_FUNCTIONS = Path(__file__).with_name("switch.sh").read_text()
# `config` and `show` of SONiC take seconds, on a busy switch many; a change waits for the one before.
_READ_TIMEOUT_S, _CHANGE_TIMEOUT_S = 60.0, 120.0
# The switch undoes what the controller has not, this much after the lease.
_AFTER_MS = 100
# /proc/uptime, by which a switch says when it did what, counts hundredths of a second.
_UPTIME_STEP_S = 0.01
_READY, _LAST_LINE = b" ready\n", b'main "$@" </dev/null\n'
# What never says that it is ready is no shell, or a slow one.
_READY_WITHIN_S = 20.0
_SSH_FAILED = 255  # ssh(1), EXIT STATUS
# A connection that has died is noticed within 15 s.
_PATIENCE = ("-o", "ConnectTimeout=15", "-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3")


class UnreachableError(UnhealthyError):
    """The switch did not answer: what was asked of it may have been done, or not."""


class SwitchFault(msgspec.Struct, frozen=True):
    """A change of a switch under a lease: its `token` there, what it claims, and the lines that make and undo it.

    `boot` is the boot id of the switch when it was planned. With `ends_s` the switch itself undoes it by then.
    """

    name: str
    switch: AgentlessSwitch
    token: str
    claims: tuple[str, ...]
    apply: tuple[str, ...]
    revert: tuple[str, ...]
    boot: str
    cycle: Cycle | None = None
    ends_s: int = 0


class Span(NamedTuple):
    """From when until when something happened there, on our clock: not before the one, and over at the other."""

    began_s: float
    ended_s: float


class Answer(NamedTuple):
    """What a script answered: `printed` by section, with exit codes, and `said` by first word.

    `during` is from when its last line was sent until all of the answer was there.
    """

    printed: Mapping[str, str]
    codes: Mapping[str, int]
    said: Mapping[str, str]
    during: Span


def token() -> str:
    """A name for a fault on the switch that nobody else has."""
    return secrets.token_hex(8)


def read(name: str, switch: AgentlessSwitch, reads: Mapping[str, Read]) -> Answer:
    """Run commands that change nothing; also `uptime_ms`, `boot` and the `session` that carries us are said.

    Raises UnhealthyError when one that is needed fails, or the switch cannot be used.
    """
    lines = [f"section {shlex.quote(key)} {shlex.quote(one.command)}" for key, one in reads.items()]
    facts = ['say session "${1-}"', 'say boot "$(cat /proc/sys/kernel/random/boot_id)"', 'say uptime_ms "$(uptime_ms)"']
    answer = _ask(name, switch, [], [*lines, *facts], _READ_TIMEOUT_S)
    failed = [key for key, one in reads.items() if one.needed and answer.codes.get(key) != 0]
    if failed or not answer.said.get("uptime_ms", "").isdecimal():
        command = reads[failed[0]].command if failed else "cat /proc/uptime"
        reason = answer.said.get(f"error-{failed[0]}" if failed else "", "") or "it printed nothing"
        raise UnhealthyError(
            f"`{command}` failed ({reason}); is it {switch.system}, and does its version have that command?"
        )
    return answer


def apply(fault: SwitchFault, deadline_ms: int) -> Span:
    """Arm the timer on the switch, then change it; returns when. The lease ends at `deadline_ms` of its uptime.

    The switch says how long it took until the first change, so that no clock of it is compared with ours. Raises
    UnhealthyError when something refused it: the switch is then as it was.
    """
    variables = {
        "claims": "\n".join(fault.claims),
        "undo": undo_file(fault),
        "flap": _flap_file(fault) if fault.cycle else "",
    }
    own_ms = 1000 * fault.ends_s
    begin = f"begin {fault.token} {deadline_ms + _AFTER_MS} {own_ms}"
    body = [begin, *map(_changing, fault.apply), f"commit {own_ms}"]
    words = [f"{name}={shlex.quote(text)}" for name, text in variables.items()]
    answer = _ask(fault.name, fault.switch, words, body, _CHANGE_TIMEOUT_S)
    if "applied" not in answer.said:
        raise UnhealthyError(answer.said.get("refused", "the switch ended the script early; see its logs"))
    prepared_s = (int(answer.said["changing"]) - int(answer.said["begun"])) / 1000
    began_s = answer.during.began_s + max(0.0, prepared_s - _UPTIME_STEP_S)
    return Span(began_s, answer.during.ended_s)


def revert(fault: SwitchFault) -> str:
    """Undo it, or find that the timer or a restart has; returns what went wrong, "" for nothing.

    Raises UnreachableError when the switch does not answer.
    """
    answer = _ask(fault.name, fault.switch, [], [f"end {fault.token}"], _CHANGE_TIMEOUT_S)
    if "refused" in answer.said:
        raise UnreachableError(answer.said["refused"])
    if "over" not in answer.said:
        raise UnreachableError("the switch ended the script early; run `heal` again")
    if answer.said.get("boot", fault.boot) != fault.boot:
        return "the switch has restarted since: what was not saved is gone, the fault too"
    return answer.said.get("problems", "")


def undo_file(fault: SwitchFault) -> str:
    """The script that undoes it, which the timer runs and `revert` too."""
    claims = [f"# claim: {claim}" for claim in fault.claims]
    body = [*claims, _limit(fault.switch), _FUNCTIONS, *_function("undo_lines", fault.revert), 'undo "$@"']
    return "\n".join(body)


def _flap_file(fault: SwitchFault) -> str:
    """The script that undoes the change and makes it again, while it lasts."""
    assert fault.cycle is not None
    period_ms, on_ms = (round(1000 * s) for s in (fault.cycle.period_s, fault.cycle.period_s * fault.cycle.duty))
    lines = [*_function("on_lines", fault.apply), *_function("off_lines", fault.revert)]
    return "\n".join(
        [_limit(fault.switch), _FUNCTIONS, *lines, f"flap {fault.token} {period_ms} {on_ms} {fault.cycle.count}"]
    )


def _limit(switch: AgentlessSwitch) -> str:
    return f"limit={SYSTEMS[switch.system].line_s}"


def _function(name: str, lines: Sequence[str]) -> list[str]:
    return [f"{name}() {{", *(f"attempt {shlex.quote(line)}" for line in lines), "}"]


def _changing(line: str) -> str:
    return f"change {shlex.quote(line)}"


def _ask(name: str, switch: AgentlessSwitch, variables: Sequence[str], body: Sequence[str], timeout_s: float) -> Answer:
    """Run a script there and read what it says. Raises UnhealthyError where it was not run."""
    mark = f"c4bench-{secrets.token_hex(8)}"
    lines = [f"mark={mark}", _limit(switch), _FUNCTIONS, *variables, "main() {", *body, "}", "say ready", ""]
    slower_s = SYSTEMS[switch.system].line_s - System._field_defaults["line_s"]
    done, during = _run(name, switch, "\n".join(lines).encode() + _LAST_LINE, timeout_s + 2 * slower_s)
    answer = _answer(mark, done.stdout.decode(errors="replace"), during)
    if not answer.said.keys() - {"ready"} and not answer.printed:
        raise UnreachableError(_reason(switch, done))
    return answer


def _reason(switch: AgentlessSwitch, done: Completed) -> str:
    words = last_line(done.stderr or done.stdout)
    if done.code == _SSH_FAILED and switch.ssh:
        return f"no connection: {words}"
    if b"sudo" in done.stderr:
        return f"its user may not use sudo without a password ({words}); allow that (NOPASSWD), or log in as root"
    return f"it ran no script ({words}); is it {switch.system}, and does its user have a shell?"


def _answer(mark: str, text: str, during: Span) -> Answer:
    """What stands after the script's own word, and between its sections."""
    printed: dict[str, str] = {}
    codes: dict[str, int] = {}
    said: dict[str, str] = {}
    section, lines = "", list[str]()
    for line in text.split("\n"):
        if mark not in line:
            lines.append(line)
            continue
        before, _, rest = line.partition(mark)
        lines.append(before)
        word, _, rest = rest.strip().partition(" ")
        if word == "section":
            section, lines = rest, []
        elif word == "code" and rest.isdecimal():
            codes[section] = int(rest)
            if rest == "0":
                printed[section] = "\n".join(lines)
        elif word:
            said[word] = rest
    return Answer(printed, codes, said, during)


def _run(name: str, switch: AgentlessSwitch, script: bytes, timeout_s: float) -> tuple[Completed, Span]:
    """Run a script as root there, and when. Raises UnreachableError when it has not ended in time."""
    enter = shlex.join(SYSTEMS[switch.system].enter)
    if SYSTEMS[switch.system].enter == SHELL:
        enter = f'{enter} "$SSH_CONNECTION"'  # sudo does not pass it on
        enter = f'[ "$(id -u)" = 0 ] && exec {enter}; exec sudo -n {enter}'
    argv = [*switch.ssh[:1], *_PATIENCE, *switch.ssh[1:], enter] if switch.ssh else ["sh", "-c", enter]
    try:
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    except OSError as error:
        raise UnhealthyError(f"cannot start {argv[0]}: {error.strerror}; install it") from None
    expired = threading.Event()

    def expire() -> None:
        expired.set()
        process.kill()

    timer = threading.Timer(timeout_s, expire)
    timer.start()
    with process:
        try:
            output, errors, during = _exchanged(name, process, script)
        finally:
            timer.cancel()
            process.kill()
    if expired.is_set():
        raise UnreachableError(f"it did not answer within {timeout_s:g} s; is it up, and not overloaded?")
    return Completed(process.returncode, output, errors), during


class _Heard:
    """What a shell has printed: whether it is ready for the last line, and when it printed something last."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream, self._text = stream, b""
        self.ready = threading.Event()
        self.last_s = time.time()

    def receive(self, size: int) -> bytes:
        """The next piece; the last one is empty, after which nothing is waited for."""
        piece = os.read(self._stream.fileno(), size)
        if piece:
            self.last_s = time.time()
        if not self.ready.is_set():
            self._text += piece
            if _READY in self._text or not piece:
                self.ready.set()
        return piece


def _exchanged(name: str, process: subprocess.Popen[bytes], script: bytes) -> tuple[bytes, bytes, Span]:
    """Feed and drain all three streams at once: a full one would block the other end."""
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    heard, stderr = _Heard(process.stdout), process.stderr
    with ThreadPoolExecutor(2, "c4bench-switch") as pool:
        fed = pool.submit(_feed, process.stdin, script, heard.ready)
        errors = pool.submit(drain, name, lambda size: os.read(stderr.fileno(), size), process.kill)
        try:
            output = drain(name, heard.receive, process.kill)
        finally:
            heard.ready.set()
        return output, errors.result(), Span(fed.result(), heard.last_s)


def _feed(stream: IO[bytes], script: bytes, ready: threading.Event) -> float:
    """Send a script, and its last line when that can be run; returns when that was."""
    text = script.removesuffix(_LAST_LINE)
    with suppress(OSError):  # the other end may not read all of it
        stream.write(text)
        stream.flush()
        ready.wait(_READY_WITHIN_S)
    sent_s = time.time()
    with suppress(OSError):
        stream.write(script[len(text) :])
    with suppress(OSError):
        stream.close()
    return sent_s
