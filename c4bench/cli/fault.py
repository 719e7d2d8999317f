"""`c4bench fault list|show|apply|status|heal`: the fault catalogue, and faults applied by hand."""

import argparse
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import yaml

from c4bench import logs, remote
from c4bench.cli import Commands
from c4bench.cli.shared import add_saved_paths, print_json
from c4bench.control.paths.switches import Switches
from c4bench.control.state.store import SavedPaths
from c4bench.errors import UnhealthyError, UsageError
from c4bench.foreign_text import one_line
from c4bench.inject import catalogue, places
from c4bench.inject.controller import OWN_INJECTOR, HistoryFile, Injector, check_targets
from c4bench.inject.crossings import KnownCrossings
from c4bench.inject.path_witness import Crossing
from c4bench.inject.places import Place
from c4bench.inject.protocol import Applied
from c4bench.inventory import Inventory, load
from c4bench.model.fault import BlastRadius, FaultRequest, FaultSpec, Parameter, TargetKind, Value
from c4bench.remote.local import LocalConnection

_TIMEOUT_S = 60.0
_TIME = Parameter("", "number", unit="s", minimum=1e-3, maximum=catalogue.LEASE_MAX_S)
_EXAMPLE = "c4bench fault apply nic.rate h5/0 fraction=25% direction=rx --hosts hosts.yml"


def register(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser("fault", help="show the fault catalogue, and apply faults by hand")
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="list every fault, one on each line")
    listing.set_defaults(run=_list)
    show = actions.add_parser("show", help="show what a fault does, needs and should cause")
    show.add_argument("fault", metavar="FAULT", help="a name that `list` prints")
    show.set_defaults(run=_show)
    apply = actions.add_parser("apply", help="apply a fault until its lease ends or Ctrl-C", epilog=_EXAMPLE)
    _apply_arguments(apply)
    status = actions.add_parser("status", help="list the faults in force and the hosts in quarantine")
    status.set_defaults(run=_status)
    heal = actions.add_parser("heal", help="heal faults now, and check hosts in quarantine again")
    heal.add_argument("id", nargs="?", metavar="ID", help="heal only this fault, as `status` names it")
    heal.set_defaults(run=_heal)
    for action in (listing, show, apply, status, heal):
        action.add_argument("--json", action="store_true", help="print lines of JSON (faults/output.schema.json)")
    for action in (apply, status, heal):
        action.add_argument(
            "--hosts", type=Path, required=True, metavar="INVENTORY", help="an Ansible inventory in YAML"
        )


def _apply_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("fault", metavar="FAULT", help="a name that `list` prints")
    parser.add_argument(
        "words",
        nargs="+",
        action="extend",
        metavar="TARGET|NAME=VALUE",
        help="h5/0, leaf0/up1, h5/gpu0, train:2@h5, h5 or leaf0; and the fault's parameters, which `show` prints",
    )
    parser.add_argument(
        "-o", dest="words", action="append", metavar="NAME=VALUE", help="a parameter of the fault, as without -o"
    )
    parser.add_argument("--plan", action="store_true", help="print the exact commands and change nothing")
    parser.add_argument(
        "--lease", default="30s", metavar="TIME", help="the host heals the fault by itself after this time (30s)"
    )
    parser.add_argument("--look", default="300ms", metavar="TIME", help="how long the witness measures (300ms)")
    parser.add_argument(
        "--last-nic", action="store_true", help="apply the fault even if the host has no other working NIC"
    )
    parser.add_argument(
        "--within",
        choices=list(BlastRadius),
        default=BlastRadius.HOST,
        help="refuse faults with a larger blast radius than this (host)",
    )
    parser.add_argument(
        "--history", type=Path, metavar="FILE", help="the file that records it (~/.local/state/c4bench/faults.jsonl)"
    )
    add_saved_paths(parser, "--paths")
    logs.add_options(parser, "warning")
    parser.set_defaults(run=_apply)


def _list(arguments: argparse.Namespace) -> int:
    faults = catalogue.load().specs
    if arguments.json:
        for _, spec in sorted(faults.items()):
            print_json(msgspec.json.encode(spec))
        return 0
    width = max(map(len, faults))
    for name, spec in sorted(faults.items()):
        sys.stdout.write(f"{name:<{width}}  {spec.summary}{' (not in the lab)' if spec.not_in_lab else ''}\n")
    return 0


def _show(arguments: argparse.Namespace) -> int:
    spec = catalogue.load().find(arguments.fault)
    if arguments.json:
        print_json(msgspec.json.encode(spec))
        return 0
    fields = _without_empty(msgspec.to_builtins(spec))
    sys.stdout.write(yaml.safe_dump(fields, sort_keys=False, allow_unicode=True, width=100))
    if spec.unseen:
        sys.stdout.write(f"not yet seen on hardware: {', '.join(spec.unseen)}\n")
    for kind, why in spec.no_driver.items():
        sys.stdout.write(f"not on {kind}: {why}\n")
    return 0


def _apply(arguments: argparse.Namespace) -> int:
    inventory = load(arguments.hosts)
    spec = catalogue.load().find(arguments.fault)
    targets, parameters = _targets_and_values(arguments.words, inventory)
    for option in ({"lease", "look"} & parameters.keys()) - spec.parameters.keys():
        setattr(arguments, option, parameters.pop(option))
    injector = _injector(inventory, arguments)
    check_targets(spec, targets)
    if arguments.plan:
        for place, name, values in _parts(spec, targets, parameters):
            _write(arguments, injector.plan(name, place, values))
        return 0
    # Blocked, not caught: Ctrl-C reaches every process of the terminal, and must not end the sessions to the hosts.
    with _interrupts_blocked(), _applied(injector, spec, targets, parameters, arguments) as applied:
        for fault in applied:
            _write(arguments, fault)
        # Slightly before the hosts heal it by themselves, so that they can still report the result.
        left_s = min(fault.expires_s for fault in applied) - time.time() - 1.0
        signal.sigtimedwait({signal.SIGINT}, max(0.0, left_s))
    return 0


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _applied(
    injector: Injector,
    spec: FaultSpec,
    targets: Sequence[Place],
    parameters: dict[str, Value],
    arguments: argparse.Namespace,
) -> Iterator[list[Applied]]:
    lease_s, witness_s = (_time(arguments, name) for name in ("lease", "look"))
    last_nic, within = bool(arguments.last_nic), BlastRadius(arguments.within)
    limits = {"lease_s": lease_s, "witness_s": witness_s}
    if spec.target is TargetKind.COMPOUND:
        with injector.apply_compound(spec.name, targets, **limits, last_nic=last_nic, within=within) as faults:
            yield faults
    else:
        only = injector.apply_at(spec.name, targets[0], parameters, **limits, last_nic=last_nic, within=within)
        with only as applied:
            yield [applied]


def _parts(
    spec: FaultSpec, targets: Sequence[Place], parameters: dict[str, Value]
) -> Iterator[tuple[Place, str, dict[str, Value]]]:
    """The faults to plan: the fault itself, or each part of a compound."""
    if spec.target is not TargetKind.COMPOUND:
        yield targets[0], spec.name, parameters
    for part in spec.parts:
        yield targets[part.target], part.fault, part.parameters


def _status(arguments: argparse.Namespace) -> int:
    return _ask_all(arguments, ["status"], nothing="no faults in force")


def _heal(arguments: argparse.Namespace) -> int:
    return _ask_all(arguments, ["heal", *([arguments.id] if arguments.id else [])], any_suffices=bool(arguments.id))


def _ask_all(
    arguments: argparse.Namespace, words: Sequence[str], *, any_suffices: bool = False, nothing: str = ""
) -> int:
    """Run a command on every host and print the answers; return the worst exit code, or 0 if any suffices.

    `nothing` is printed, but not for JSON, where all hosts have answered and none has printed a line.
    """
    inventory = load(arguments.hosts)
    codes, lines = [], 0
    for name in _places_to_ask(inventory):
        try:
            code, shown = _ask(inventory, name, words, arguments)
            codes.append(code)
            lines += shown
        except UnhealthyError as error:
            sys.stderr.write(f"c4bench: {one_line(error)}\n")
            codes.append(error.exit_code)
    if any_suffices and 0 not in codes:
        raise UsageError(
            f"no fault {words[-1]} is in force: it was never applied, or its lease has ended; see `status`"
        )
    if nothing and not lines and not any(codes) and not arguments.json:
        sys.stdout.write(f"{nothing}\n")
    return 0 if any_suffices else max(codes)


def _places_to_ask(inventory: Inventory) -> list[str]:
    """Every host, and one switch for each machine that drives switches, which answers for all of them.

    Agentless switches are driven from here, and one of them stands for all.
    """
    own = [name for name in inventory.switches if inventory.facts[name].os]
    machines = {name: inventory.access[name] for name in inventory.switches if name not in own}
    driven = {"" if access.connection == "local" else access.address: name for name, access in machines.items()}
    return [*(host.name for host in inventory.hosts), *driven.values(), *own[:1]]


def _ask(inventory: Inventory, name: str, words: Sequence[str], arguments: argparse.Namespace) -> tuple[int, int]:
    """Ask one host and print its answer: (its exit code, how many lines were printed)."""
    access = inventory.access[name]
    own = bool(inventory.facts[name].os)
    argv = [*OWN_INJECTOR, *words] if own else [access.python, "-m", "c4bench.inject", *words]
    with LocalConnection(name) if own else remote.connect(name, access) as connection:
        done = connection.run(argv, timeout_s=_TIMEOUT_S, check=False)
    answers = done.stdout.decode(errors="replace").splitlines()
    shown = [line for line in answers if not (words[0] == "heal" and "no fault" in line)]
    sys.stdout.writelines(f"{line}\n" if arguments.json else f"{name}: {line}\n" for line in shown)
    if done.code and not done.stdout:
        raise UnhealthyError(f"{name}: {remote.protocol.last_line(done.stderr)}")
    return done.code, len(shown)


def _injector(inventory: Inventory, arguments: argparse.Namespace) -> Injector:
    state = Path(os.environ.get("XDG_STATE_HOME", Path.home() / ".local/state"))
    return Injector(
        connect=lambda host: remote.connect(host, inventory.access[host]),
        python=lambda host: inventory.access[host].python,
        record=HistoryFile(arguments.history or state / "c4bench/faults.jsonl"),
        crossings=lambda request: _crossing(request, inventory, SavedPaths(arguments.paths, inventory.hosts)),
    )


def _crossing(request: FaultRequest, inventory: Inventory, saved: SavedPaths) -> Crossing | None:
    """Packets of hosts that cross the faulty port, by the paths that `c4bench paths` has saved.

    None without any, and where a switch does not say which ports it has.
    """
    known = saved.load()
    if not known.pairs:
        return None
    switches = Switches(inventory, lambda switch: remote.connect(switch, inventory.access[switch]))
    try:
        ports = switches.ports()
    except UnhealthyError:
        return None
    return KnownCrossings(known.atlas(), inventory.graph, ports, inventory.hosts)(request)


def _targets_and_values(arguments: Sequence[str], inventory: Inventory) -> tuple[list[Place], dict[str, Value]]:
    values: dict[str, Value] = {}
    targets = []
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if equals:
            values[name] = value
        else:
            targets.append(places.parse(argument, inventory))
    return targets, values


def _time(arguments: argparse.Namespace, option: str) -> float:
    return float(catalogue.value("--" + option, "time", _TIME, getattr(arguments, option)))


def _write(arguments: argparse.Namespace, reply: Any) -> None:  # noqa: ANN401  (any reply of the protocol)
    if arguments.json:
        print_json(msgspec.json.encode(reply))
        return
    sys.stdout.write(yaml.safe_dump(msgspec.to_builtins(reply), sort_keys=False, allow_unicode=True, width=100) + "\n")
    sys.stdout.flush()


def _without_empty(value: Any) -> Any:  # noqa: ANN401  (JSON)
    """Drop empty values, recursively."""
    if isinstance(value, dict):
        return {key: _without_empty(item) for key, item in value.items() if item not in ("", [], {}, None, False)}
    return [_without_empty(item) for item in value] if isinstance(value, list) else value
