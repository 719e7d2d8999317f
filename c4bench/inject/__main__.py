"""`python -m c4bench.inject`: the only privileged command on a host. It answers in lines of JSON on stdout.

hold REQUEST    apply a fault and hold it until a line `revert`, the end of the input, or the end of its lease
plan REQUEST    print the commands that `hold` would run and those that revert them; change nothing
try             for each request on stdin, a line each: a plan as `plan` prints it, with any parameters, or why not
heal [ID]       revert the faults in force
status          list the faults in force
reserve CLAIM   lock this host's reservation until the end of the input, or say who has it
may             succeed silently if the caller may apply faults here, otherwise say what is missing; change nothing
schema [output] print the JSON Schema of a catalogue file, or of the output

Before the command: --own, for agentless switches, which this machine changes over SSH as whoever calls, without
becoming root; heal and status are then of those. --log-level debug|info|warning|error (default warning) and
--log-format text|json, for stderr.
"""

import argparse
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NoReturn

import msgspec

import c4bench
from c4bench import logs, namespaces
from c4bench.decoding import DecodingError, from_json
from c4bench.errors import C4Error, UnhealthyError, UsageError
from c4bench.inject import agentless, caller, catalogue, fault_session, permitted, privilege, protocol, reading
from c4bench.inject.first_plan import first_plan
from c4bench.inject.journal import STATE, Journal, own_state
from c4bench.inject.privilege import become_root
from c4bench.inject.registry import installed
from c4bench.inject.switch_shell import UnreachableError
from c4bench.model.fault import FaultRequest
from c4bench.model.reservation import Claim

_logger = logging.getLogger(__name__)


def program(arguments: Sequence[str]) -> int:
    """`main` as a process of its own: what it has inherited is reset, and nobody can make it wait for its output."""
    if os.geteuid() == 0:
        try:
            caller.reset(roots=privilege.caller() == 0)
        except C4Error as error:
            _print(protocol.Refused(str(error), error.exit_code))
            return error.exit_code
    with caller.of_caller():
        return main(arguments)


def main(arguments: Sequence[str]) -> int:
    """Run one command; return its exit code (see `c4bench.errors`)."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    try:
        options = _options(arguments)
        logs.configure(options.log_level, options.log_format)
        command = _command(options.words)
        if options.own:
            _refuse_borrowed_rights()
            command = _OF_SWITCHES.get(command, command)
        elif command in _OF_HOSTS:
            become_root(arguments, needed=command in _ROOTS)
        command(*options.words[1:])
    except C4Error as error:
        _print(protocol.Refused(str(error), error.exit_code))
        return error.exit_code
    return 0


def _hold(text: str) -> None:
    _hold_in(_request(text), STATE)


def _hold_own(text: str) -> None:
    _hold_in(_switch_request(text), own_state())


def _hold_in(request: FaultRequest, state: Path) -> None:
    known = catalogue.load()
    records = Journal.of(installed(known.specs, "fault", request.fault).target, request.host, state)
    with _pinned(request) as inodes:
        fault_session.hold(request, known, records, sys.stdin.fileno(), _print, inodes)


def _plan(text: str) -> None:
    _plan_for(_request(text))


def _plan_own(text: str) -> None:
    _plan_for(_switch_request(text))


def _plan_for(request: FaultRequest) -> None:
    known = catalogue.load()
    installed(known.specs, "fault", request.fault)
    spec, resolved = known.resolve(request)
    with _pinned(resolved):
        _print(fault_session.planned(spec, resolved))


def _try() -> None:
    _try_each(_request)


def _try_own() -> None:
    _try_each(_switch_request)


def _try_each(decode: Callable[[str], FaultRequest]) -> None:
    known = catalogue.load()
    with reading.once():
        for line in sys.stdin:
            try:
                request = decode(line)
                with _pinned(request):
                    _print(first_plan(installed(known.specs, "fault", request.fault), request))
            except C4Error as error:
                _print(protocol.Refused(str(error), error.exit_code))


def _heal(*ids: str) -> None:
    _heal_in(Journal.every(), ids)


def _heal_own(*ids: str) -> None:
    _heal_in(Journal.of_switches(own_state()), ids)


def _heal_in(journals: Sequence[Journal], ids: Sequence[str]) -> None:
    known, left = False, list[str]()
    for records in journals:
        for fault_id in ids or [entry.lease.id for entry in records.entries()]:
            try:
                reverted = records.revert(fault_id, "heal")
            except UnreachableError as error:
                known = True
                left.append(f"{fault_id} is not known to be over, because its switch was not asked: {error}")
                continue
            known |= reverted is not None
            if reverted:
                _print(reverted)
        left += records.damaged()
        quarantine = records.recheck_quarantine()
        if quarantine:
            residue = "; ".join(quarantine.residue)
            left.append(f"{quarantine.request.host} is not yet in its state before {quarantine.id}: {residue}")
    if left:
        raise UnhealthyError("; ".join(left))
    if ids and not known:
        raise UsageError(f"no fault {ids[0]} is in force here: the id is wrong or its lease has expired; see `status`")


def _status() -> None:
    _status_of(Journal.every())


def _status_own() -> None:
    _status_of(Journal.of_switches(own_state()))


def _status_of(journals: Sequence[Journal]) -> None:
    for records in journals:
        for entry in records.entries():
            if entry.in_force:
                _print(entry.lease)
        if records.quarantine:
            _print(records.quarantine)
        for damage in records.damaged():
            _logger.error(damage)


def _reserve(text: str) -> None:
    try:
        claim = from_json(text, Claim)
    except DecodingError as error:
        raise UsageError(f"the claim is not one: {error}") from None
    keeper = Path(c4bench.__file__).parent / "reserve/keeper.py"
    os.execv(sys.executable, [sys.executable, "-I", str(keeper), "hold", msgspec.json.encode(claim).decode()])


def _may() -> None:
    """Do nothing: `become_root` has raised an error if the caller may not."""


def _schema(of: str = "catalogue") -> None:
    schemas = {"catalogue": catalogue.schema, "output": protocol.schema}
    if of not in schemas:
        raise UsageError(f"there is no schema of {of!r}; there is one of {' and one of '.join(schemas)}")
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(schemas[of]()), indent=2).decode() + "\n")


_COMMANDS: dict[str, tuple[Callable[..., None], range]] = {
    "hold": (_hold, range(1, 2)),
    "plan": (_plan, range(1, 2)),
    "try": (_try, range(1)),
    "heal": (_heal, range(2)),
    "status": (_status, range(1)),
    "reserve": (_reserve, range(1, 2)),
    "may": (_may, range(1)),
    "schema": (_schema, range(2)),
}
# With --own.
_OF_SWITCHES: dict[Callable[..., None], Callable[..., None]] = {
    _hold: _hold_own,
    _plan: _plan_own,
    _try: _try_own,
    _heal: _heal_own,
    _status: _status_own,
}
_ROOTS = (_hold, _heal, _reserve, _may)
_OF_HOSTS = (*_ROOTS, _plan, _try, _status)


class _Parser(argparse.ArgumentParser):
    """Reports errors as UsageError, which the protocol answers."""

    def error(self, message: str) -> NoReturn:
        """Raises UsageError."""
        raise UsageError(message)


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    """The options before the command, and `words`: the command and its arguments."""
    parser = _Parser(add_help=False, allow_abbrev=False)
    logs.add_options(parser, "warning")
    parser.add_argument("--own", action="store_true")
    parser.add_argument("words", nargs=argparse.REMAINDER)
    return parser.parse_args(arguments)


def _command(arguments: Sequence[str]) -> Callable[..., None]:
    name = arguments[0] if arguments else ""
    command, counts = _COMMANDS.get(name, (None, range(0)))
    if command is None or len(arguments) - 1 not in counts:
        raise UsageError(
            f"{' '.join(arguments)!r} is no command: say hold or plan REQUEST, try, heal [ID], status, may, schema, "
            "reserve CLAIM"
        )
    return command


def _refuse_borrowed_rights() -> None:
    """Raises UsageError for a user who has become root: a request says which program is run to reach a switch."""
    if os.geteuid() == 0 and privilege.caller() != 0:
        raise UsageError("switches are changed over SSH as yourself: call it without sudo")


def _switch_request(text: str) -> FaultRequest:
    request = _decoded(text)
    agentless.system_of(request)
    permitted.check_names(request)
    return request


def _decoded(text: str) -> FaultRequest:
    try:
        return from_json(text, FaultRequest)
    except DecodingError as error:
        raise UsageError(f"the request is not one: {error}") from None


def _request(text: str) -> FaultRequest:
    request = _decoded(text)
    if request.switch:
        raise UsageError(f"{request.host} is changed from the controller, over SSH; add --own")
    return permitted.restrict(request, permitted.load())


@contextmanager
def _pinned(request: FaultRequest) -> Iterator[dict[str, int]]:
    """Open the switch's network namespace once; its inode by path. Raises UsageError where there is none."""
    with ExitStack() as stack:
        try:
            inodes = stack.enter_context(namespaces.pinned({request.netns: 0} if request.netns else {}))
        except OSError as error:
            raise UsageError(f"{request.host}: {error}; correct the inventory's netns") from None
        yield inodes


def _print(reply: object) -> None:
    sys.stdout.write(msgspec.json.encode(reply).decode() + "\n")
    sys.stdout.flush()


def _end(number: int, _: object) -> None:
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(program(sys.argv[1:]))
