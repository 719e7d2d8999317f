"""What other distributions add to ours, by name: entry points in one group for each kind (docs/howto/extend.md).

Whoever installs such a distribution decides what runs here. The injector therefore runs only with packages that root
has installed: its callers' folders and variables mean nothing to it (`deploy.prepare`).
"""

import inspect
import logging
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Generic, TypeVar

from c4bench.errors import UsageError
from c4bench.foreign_text import one_line

if TYPE_CHECKING:
    from importlib.metadata import Distribution, EntryPoint

_logger = logging.getLogger(__name__)

FAULTS = "c4bench.faults"
DRIVERS = "c4bench.drivers"
WITNESSES = "c4bench.witnesses"
WORKLOADS = "c4bench.workloads"
PATH_CONTROLS = "c4bench.path_controls"
EVIDENCE = "c4bench.evidence"
SWITCHES = "c4bench.switches"
DETECTORS = "c4bench.detectors"
SIGNS = "c4bench.signs"
GROUPS = (FAULTS, DRIVERS, WITNESSES, WORKLOADS, PATH_CONTROLS, EVIDENCE, SWITCHES, DETECTORS, SIGNS)

EntryT = TypeVar("EntryT")


class Registry(Mapping[str, EntryT], Generic[EntryT]):
    """Ours by name, then what others add by entry points in `group`: each is `what`, as `fits(name, entry)` checks.

    `own` returns ours. Code of others is imported when its name is looked up, or when all are listed. An entry that
    cannot be used is left out, with a warning of one line that names its distribution.
    """

    def __init__(
        self, group: str, what: str, own: Callable[[], Mapping[str, EntryT]], fits: Callable[[str, object], bool]
    ) -> None:
        self._group, self._what, self._own_entries, self._fits = group, what, own, fits
        self._loaded: dict[str, EntryT | None] = {}

    def __getitem__(self, name: str) -> EntryT:
        if name in self.own:
            return self.own[name]
        if name not in self._loaded:
            self._loaded[name] = self._load(self._added[name])
        entry = self._loaded[name]
        if entry is None:
            raise KeyError(name)
        return entry

    def __iter__(self) -> Iterator[str]:
        yield from self.own
        yield from (name for name in self._added if self.get(name) is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    @cached_property
    def own(self) -> Mapping[str, EntryT]:
        """Ours."""
        return self._own_entries()

    @cached_property
    def _added(self) -> dict[str, "EntryPoint"]:
        """The entry points of others, whose names are not taken, in the order of their names."""
        added: dict[str, EntryPoint] = {}
        for point in _entry_points(self._group):
            if point.name in self.own:
                self._leave_out(point, "c4bench has this name; choose another")
            elif point.name in added:
                self._leave_out(point, f"{_distribution(added[point.name])} has this name; choose another")
            else:
                added[point.name] = point
        return added

    def _load(self, point: "EntryPoint") -> EntryT | None:
        try:
            entry = point.load()
            fits = self._fits(point.name, entry)
        except (Exception, SystemExit) as error:
            self._leave_out(point, f"{point.value} cannot be imported: {type(error).__name__}: {error}")
            return None
        if not fits:
            self._leave_out(point, f"{point.value} is not {self._what}")
            return None
        return entry  # type: ignore[no-any-return]

    def _leave_out(self, point: "EntryPoint", why: str) -> None:
        text = f"package {_distribution(point)}: {self._group} {point.name!r} is left out: {why}"
        _logger.warning("%s", one_line(text))


def find(entries: Mapping[str, EntryT], noun: str, name: str) -> EntryT:
    """The entry of that name. Raises UsageError that lists all."""
    entry = entries.get(name)
    if entry is None:
        raise UsageError(f"no {noun} {name!r}: one of {', '.join(entries)}")
    return entry


def takes(count: int) -> Callable[[str, object], bool]:
    """A check that an entry can be called with so many arguments."""

    def fits(name: str, entry: object) -> bool:  # noqa: ARG001  (as `Registry` calls it)
        if not callable(entry):
            return False
        try:
            inspect.signature(entry).bind(*range(count))
        except (TypeError, ValueError):
            return False
        return True

    return fits


def is_a(kind: type) -> Callable[[str, object], bool]:
    """A check that an entry is of a class, or has what a protocol asks for."""
    return lambda name, entry: isinstance(entry, kind)  # noqa: ARG005  (as `Registry` calls it)


def distributions() -> "list[Distribution]":
    """The distributions that add something to ours, in the order of their names."""
    found = {_distribution(point): point.dist for group in GROUPS for point in _entry_points(group) if point.dist}
    return [found[name] for name in sorted(found)]


def _entry_points(group: str) -> "list[EntryPoint]":
    from importlib.metadata import entry_points  # noqa: PLC0415  (most programs look up ours only)

    return sorted(entry_points(group=group), key=lambda point: (point.name, _distribution(point)))


def _distribution(point: "EntryPoint") -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist else "of no name"
