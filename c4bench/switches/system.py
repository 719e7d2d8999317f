"""What a module of a system offers: what to read, how to read it, and the changes it can make and take back."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec

from c4bench.errors import UnhealthyError
from c4bench.model.fault import FaultRequest, Misconfiguration
from c4bench.switches.facts import Port, SwitchFacts


class Cycle(msgspec.Struct, frozen=True):
    """An intermittent change: in force for `duty` of each `period_s`, `count` times."""

    period_s: float
    duty: float
    count: int


class Change(msgspec.Struct, frozen=True):
    """Lines for the system's shell that change it, and those that take all of that back.

    Each line is a command that fails (exit status) where it was refused. Lines of `revert` may run when only some of
    `apply` have, and more than once. `claims` are the settings changed: two changes with a common claim exclude each
    other. With a `cycle` the switch takes the change back and makes it again while it lasts. Where `ends_s` is given,
    the lines of the change make the switch itself undo it so many seconds later.
    """

    claims: tuple[str, ...]
    apply: tuple[str, ...]
    revert: tuple[str, ...]
    cycle: Cycle | None = None
    ends_s: int = 0


class Read(NamedTuple):
    """A command of which the system is known; without a `needed` one nothing is known. Its output is in any order."""

    command: str
    needed: bool = True


Printed = Mapping[str, str]
# A POSIX shell that reads a script from its input.
SHELL = ("sh", "-s")
Changer = Callable[[SwitchFacts, FaultRequest], Change]


class System(NamedTuple):
    """A switch's operating system.

    `enter` runs a POSIX shell on the switch that reads a script from its input, as root or by `sudo -n`. `reads` are
    commands by name, and `parse` makes facts of what they have printed (those that failed are left out). `listing` is
    the configuration that a change may change, one row a line, by section: equal texts mean an equal state; with a
    port, only that port's state, besides what the switch has in common. `changes` are by name: the driver `sonic.down`
    of a file in faults/ is `down` here. A line of a change may take `line_s` seconds. `fixes` are the commands by which
    a user corrects a wrong setting (`systems.fix`).
    """

    name: str
    reads: Mapping[str, Read]
    parse: Callable[[Printed], SwitchFacts]
    listing: Callable[[SwitchFacts, str | None], dict[str, str]]
    changes: Mapping[str, Changer]
    enter: tuple[str, ...] = SHELL
    fixes: Mapping[Misconfiguration, str] = {}
    line_s: int = 20


def port_of(facts: SwitchFacts, request: FaultRequest) -> Port:
    """The port that is asked for. Raises UnhealthyError where the switch has none of that name."""
    port = facts.ports.get(request.port or "")
    if port is None:
        near = ", ".join([*facts.ports][:8])
        raise UnhealthyError(f"{request.host} has no port {request.port}; it has: {near or 'none'}")
    return port


def up_port(facts: SwitchFacts, request: FaultRequest) -> Port:
    """`port_of` that is set up. Raises UnhealthyError for one that is shut down."""
    port = port_of(facts, request)
    if not port.admin_up:
        raise UnhealthyError(f"{request.where} is shut down already; choose a port that is up")
    return port


def cycle_of(request: FaultRequest) -> Cycle:
    """The cycle of a flapping port, by the fault's parameters."""
    return Cycle(request.number("period_s"), request.number("duty"), int(request.number("count")))
