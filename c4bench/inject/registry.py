"""Drivers and witnesses, by the names that the files in faults/ use.

Each of ours registers itself where it is defined, with `@driver("netdev.loss")` or `@witness("echo_loss")`. Every
module of `c4bench.inject.drivers` and `c4bench.inject.witness` is searched, so a new one needs no other entry.
"""

import pkgutil
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Generic, TypeVar

from c4bench import extensions
from c4bench.errors import UnhealthyError, UsageError, meant
from c4bench.inject.actions import Plan
from c4bench.inject.witness.base import Witness
from c4bench.model.fault import FaultRequest

# The second argument is the target of the fault's kind (see `targets`).
Driver = Callable[[FaultRequest, Any], Plan]
WitnessFactory = Callable[[FaultRequest], Witness]
_Entry = TypeVar("_Entry")
_DriverT = TypeVar("_DriverT", bound=Driver)
_WitnessT = TypeVar("_WitnessT", bound=WitnessFactory)


class ModuleRegistry(extensions.Registry[_Entry], Generic[_Entry]):
    """What the modules of `package` have registered, and what others add; `count` arguments are taken.

    The modules are imported at the first look-up.
    """

    def __init__(self, package: str, group: str, what: str, count: int) -> None:
        super().__init__(group, what, self._load_modules, extensions.takes(count))
        self.package = package
        self._entries: dict[str, _Entry] = {}

    def add(self, name: str, entry: _Entry) -> None:
        """Register `entry`. Raises ValueError for a name that is taken."""
        if name in self._entries:
            raise ValueError(f"{self.package}: {name!r} is registered twice; choose another name")
        self._entries[name] = entry

    def _load_modules(self) -> Mapping[str, _Entry]:
        for module in pkgutil.iter_modules(import_module(self.package).__path__):
            import_module(f"{self.package}.{module.name}")
        return self._entries


DRIVERS: ModuleRegistry[Driver] = ModuleRegistry(
    "c4bench.inject.drivers", extensions.DRIVERS, "a function (request, target) that returns a Plan", 2
)
WITNESSES: ModuleRegistry[WitnessFactory] = ModuleRegistry(
    "c4bench.inject.witness", extensions.WITNESSES, "a class or function (request) that makes a Witness", 1
)


def installed(entries: Mapping[str, _Entry], noun: str, name: str) -> _Entry:
    """The fault, driver or witness `name`.

    Raises UsageError for a name that is like one of these, and UnhealthyError for any other, whose package is not
    installed on this host.
    """
    entry = entries.get(name)
    if entry is None:
        if near := meant(name, entries, ""):
            raise UsageError(f"there is no {noun} {name!r}{near}")
        raise UnhealthyError(
            f"{sys.prefix} has no {noun} {name!r}; install its package where you deploy from, and deploy again"
        )
    return entry


def driver(name: str) -> Callable[[_DriverT], _DriverT]:
    """Register a function that plans a fault: (request, target) -> Plan. It changes nothing on the host."""

    def register(function: _DriverT) -> _DriverT:
        DRIVERS.add(name, function)
        return function

    return register


def witness(name: str) -> Callable[[_WitnessT], _WitnessT]:
    """Register a class or function that makes the witness of a request."""

    def register(factory: _WitnessT) -> _WitnessT:
        WITNESSES.add(name, factory)
        return factory

    return register
