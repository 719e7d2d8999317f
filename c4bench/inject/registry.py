"""Drivers and witnesses, by the names that the files in faults/ use.

Each registers itself where it is defined, with `@driver("netdev.loss")` or `@witness("echo_loss")`. Every module of
`c4bench.inject.drivers` and `c4bench.inject.witness` is searched, so a new one needs no other entry.
"""

import pkgutil
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any, Generic, TypeVar

from c4bench.inject.actions import Plan
from c4bench.inject.witness.base import Witness
from c4bench.model.fault import FaultRequest

# The second argument is the target of the fault's kind (see `targets`).
Driver = Callable[[FaultRequest, Any], Plan]
WitnessFactory = Callable[[FaultRequest], Witness]
_Entry = TypeVar("_Entry")
_DriverT = TypeVar("_DriverT", bound=Driver)
_WitnessT = TypeVar("_WitnessT", bound=WitnessFactory)


class Registry(Mapping[str, _Entry], Generic[_Entry]):
    """What the modules of `package` have registered. They are imported at the first look-up."""

    def __init__(self, package: str) -> None:
        self.package = package
        self._entries: dict[str, _Entry] = {}
        self._loaded = False

    def add(self, name: str, entry: _Entry) -> None:
        """Register `entry`. Raises ValueError for a name that is taken."""
        if name in self._entries:
            raise ValueError(f"{self.package}: {name!r} is registered twice; choose another name")
        self._entries[name] = entry

    def __getitem__(self, name: str) -> _Entry:
        return self._load()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._load())

    def __len__(self) -> int:
        return len(self._load())

    def _load(self) -> dict[str, _Entry]:
        if not self._loaded:
            self._loaded = True
            for module in pkgutil.iter_modules(import_module(self.package).__path__):
                import_module(f"{self.package}.{module.name}")
        return self._entries


DRIVERS: Registry[Driver] = Registry("c4bench.inject.drivers")
WITNESSES: Registry[WitnessFactory] = Registry("c4bench.inject.witness")


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
